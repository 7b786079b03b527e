"""When is a process that ended started again? Pure."""

from __future__ import annotations

from dataclasses import dataclass

STEADY_S = 10.0
"""Whoever lived this long was well: its successor starts at once, and the count begins anew."""
DELAY_S_FIRST = 0.1
DELAY_S_MAX = 10.0
"""The longest pause: a cause that lasts (no memory, a broken disk) is asked about six times a minute."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often in a row a process ended early."""

    early: int = 0

    def after(self, lived_s: float) -> Restarts:
        """The count once it has ended again, after `lived_s` seconds."""
        return Restarts(0 if lived_s >= STEADY_S else self.early + 1)

    @property
    def delay_s(self) -> float:
        """Before the next start: none after a good life, else doubling up to `DELAY_S_MAX`."""
        return min(DELAY_S_FIRST * 2.0 ** min(self.early - 1, 16), DELAY_S_MAX) if self.early else 0.0
