"""A change of a tenant at run time as it stands: what it sets, where, and for how much longer."""

from __future__ import annotations

from dataclasses import dataclass

from kvgate.config.overrides import Override

CHANGE_S_MAX = 7 * 86400.0
"""The longest that a change at run time holds; what is to hold for longer belongs in the file."""


@dataclass(frozen=True, slots=True)
class Standing:
    tenant: str
    pool: str | None
    """None: in all pools."""
    override: Override
    left_s: float
