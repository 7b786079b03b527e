"""Numbers and flags as vLLM reads them: pydantic's lax mode, in which "7", 7.0 and true are integers.

What vLLM takes must never be read as something else here, or the price would not be that of the request. So
these functions take at least what pydantic takes; what neither can read is `UNREADABLE`.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Any, Final

INT_DIGITS_MAX = 20
"""Longer than any 64-bit number; also keeps `int` off strings that take long to convert."""

_INT = re.compile(r"\s*[+-]?[0-9_]{1,%s}(\.[0_]*)?\s*" % INT_DIGITS_MAX)  # noqa: UP031

_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})


class _Unreadable(Enum):
    UNREADABLE = auto()


UNREADABLE: Final = _Unreadable.UNREADABLE
Unreadable = _Unreadable


def as_int(value: Any) -> int | Unreadable | None:
    """The integer that vLLM would see; None for null."""
    if value is None or type(value) is int:
        return value
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else UNREADABLE
    if isinstance(value, str) and _INT.fullmatch(value):
        return _int_of(value.partition(".")[0])
    return UNREADABLE


def _int_of(digits: str) -> int | Unreadable:
    try:
        return int(digits)
    except ValueError:  # underscores where Python allows none
        return UNREADABLE


def as_bool(value: Any) -> bool:
    """Whether vLLM would take this as true; what it would refuse is false."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.lower() in _TRUE
    return isinstance(value, int | float) and value == 1
