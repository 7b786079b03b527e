"""Counting prompt tokens: `counter_for` makes the counter that a setting names; `base` has the contract."""

from __future__ import annotations

from kvgate.tokens.choose import counter_for

__all__ = ["counter_for"]
