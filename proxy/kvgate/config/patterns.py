"""Names and patterns of names: `llama-70b` is exact, `llama-*` a pattern; `*` is any text, nothing else is special.

Pure. An exact name comes before a pattern, and of several patterns the one that was written first holds, so that
a file can be read from the top.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def is_pattern(text: str) -> bool:
    return "*" in text


def matches(pattern: str, name: str) -> bool:
    """Whether a name is meant by an exact name or a pattern; upper and lower case differ."""
    return bool(_compiled(pattern).fullmatch(name)) if is_pattern(pattern) else pattern == name


def best(name: str, written: Iterable[str]) -> str | None:
    """The one of `written` that holds for a name: the name itself, or else the first pattern that matches it."""
    patterns = tuple(written)
    if name in patterns:
        return name
    return next((pattern for pattern in patterns if is_pattern(pattern) and matches(pattern, name)), None)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)
