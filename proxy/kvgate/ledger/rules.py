"""The rules of all tenants of a pool as they go to Redis: in parts, with a digest of the whole.

A script call takes a part at most, so that ten thousand tenants hold nobody up; what is in force changes with the
last part, for all at once. The digest tells whether there is anything to say: replicas that start or reload
together say the same, and only the first one sends it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from kvgate_policies.types import TenantRules

PART_MAX = 250
"""Tenants in one call: about a millisecond of the server."""

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """Each of `rows` is one part: the words of its tenants, one after the other. There is always a part."""

    digest: str
    rows: tuple[Row, ...]

    @classmethod
    def of(cls, rules: Mapping[str, TenantRules]) -> Parts:
        """Raises ValueError for a name with control characters, which separate the parts of keys in Redis."""
        words = [_words(name, rules[name]) for name in sorted(rules)]
        rows = [
            tuple(word for tenant in words[start : start + PART_MAX] for word in tenant)
            for start in range(0, max(len(words), 1), PART_MAX)
        ]
        return cls(hashlib.sha256(repr(words).encode()).hexdigest(), tuple(rows))


def _words(name: str, rules: TenantRules) -> Row:
    """Floats as `repr` writes them, which reads as the same double everywhere."""
    if not name or not name.isprintable():
        raise ValueError(f"the name of a tenant has printable characters only: {name!r}")
    return (
        name,
        repr(float(rules.weight)),
        repr(float(rules.guarantee)),
        repr(float(rules.limit)),
        _or_none(rules.limit_tokens),
        str(int(rules.borrow)),
        _or_none(rules.tokens_per_minute),
        _or_none(rules.requests_per_minute),
    )


def _or_none(number: int | None) -> str:
    return "" if number is None else str(number)
