"""When the load client itself did not run.

On a machine that is paused or starved, everybody's tokens arrive late, and that says nothing about the server.
So the client watches its own event loop: it sleeps for a moment over and over, and a sleep that lasted far too
long is a stall. The report takes stalls out of the gaps between tokens, and says how long they were.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BEAT_S = 0.02
STALL_S_MIN = 0.1
"""A shorter delay is ordinary scheduling, and far from a freeze."""


@dataclass(frozen=True, slots=True)
class Stall:
    """From when to when this process stood still."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


class Heartbeat:
    """Collects stalls while `beat` runs; at most ten a second, by their minimum length."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self.stalls: list[Stall] = []

    async def beat(self) -> None:
        """Watch until cancelled."""
        due_s = self._clock_s() + BEAT_S
        while True:
            await asyncio.sleep(BEAT_S)
            now_s = self._clock_s()
            if now_s - due_s >= STALL_S_MIN:
                self.stalls.append(Stall(due_s, now_s))
            due_s = now_s + BEAT_S
