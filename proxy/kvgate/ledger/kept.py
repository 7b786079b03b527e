"""Overrides in a shared ledger: Redis has them, and each process remembers what it saw last.

What is remembered answers while Redis is away, and is told to a Redis that lost everything, unless somebody said
something else there meanwhile. So an override outlives a restart of Redis, but never its own time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kvgate.ledger.overrides import Overrides

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvgate.clock import Clock
    from kvgate.ledger.scripts import LedgerScripts


class SharedOverrides:
    """What goes wrong in a call is raised. `lost` is set by whoever finds that Redis began with nothing."""

    def __init__(self, scripts: LedgerScripts, clock: Clock) -> None:
        self._scripts = scripts
        self._clock = clock
        self._seen = Overrides()
        self.lost = False

    def check(self, name: str, text: str | None, ttl_s: float) -> None:
        """Raises ValueError for what no ledger keeps."""
        Overrides().put(name, text, ttl_s, 0.0)

    async def put(self, name: str, text: str | None, ttl_s: float) -> None:
        """Raises ValueError as `Overrides.put` does."""
        self.check(name, text, ttl_s)
        await self._scripts.override(name, text, round(1000 * ttl_s))
        self._seen.put(name, text, ttl_s, self._clock.monotonic())

    async def read(self) -> Mapping[str, tuple[str, float]]:
        """What Redis has, each with the seconds that are left."""
        found = await self._scripts.overrides()
        now_s = self._clock.monotonic()
        self._seen = Overrides()
        for name, (text, left_s) in found.items():
            self._seen.put(name, text, left_s, now_s)
        return found

    def seen(self) -> Mapping[str, tuple[str, float]]:
        """As far as they are known here, and hold still."""
        return self._seen.current(self._clock.monotonic())

    async def tell_again(self) -> None:
        """After Redis lost them: they hold for no longer than was said at first."""
        if self.lost:
            kept = self.seen().items()
            await asyncio.gather(
                *(
                    self._scripts.override(name, text, round(1000 * left_s), keep=True)
                    for name, (text, left_s) in kept
                )
            )
            self.lost = False

    def __repr__(self) -> str:
        return f"<SharedOverrides {len(self.seen())} seen>"
