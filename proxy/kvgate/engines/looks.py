"""How closely a process looks at a backend: all of `/metrics`, or `/health` alone.

Where many processes share a ledger, one of them scrapes a backend with every probe and tells the ledger what it
saw; the others look at `/health`, and scrape now and then, so that they know its size and can take over. With R
replicas of W workers a backend answers one scrape a second instead of R × W.

A process scrapes too where it has to know by itself: before it has learned the backend's capacity, while the
shared ledger is away, as long as the backend is down, and at once after any other sign that it may have been restarted:
the ledger knowing another size of it is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvgate.clock import Clock
    from kvgate.ledger.base import Ledger

OTHERS_SCRAPE_S = 10.0
"""Between two scrapes of a process that is not the one to scrape: its numbers are a reserve."""
SCRAPES_PER_STALL = 3
"""At least so many within the time after which an engine counts as stalled."""


class Looks:
    """Of one backend."""

    def __init__(self, url: str, ledger: Ledger, clock: Clock, *, stall_after_s: float) -> None:
        self._url = url
        self._ledger = ledger
        self._clock = clock
        self._interval_s = min(OTHERS_SCRAPE_S, stall_after_s / SCRAPES_PER_STALL)
        self._scraped_s: float | None = None

    @property
    def elected(self) -> bool:
        """Whether this process scrapes with every probe and speaks for the backend."""
        return self._ledger.scrapes(self._url)

    @property
    def due(self) -> bool:
        """Whether the next look has to be a scrape."""
        if self._scraped_s is None or self.elected:
            return True
        return self._clock.monotonic() - self._scraped_s >= self._interval_s

    def scraped(self) -> None:
        self._scraped_s = self._clock.monotonic()

    def doubt(self) -> None:
        """Something happened that a restart would explain, or nothing is known yet."""
        self._scraped_s = None
