"""The one clock. Code that needs the time is given a `Clock`; tests give one that they move themselves."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds from an arbitrary point; never goes back."""
        ...


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()
