"""One engine of the pool as this process keeps it: its health, its capacity, and what the ledger was told.

The ledger is told the wish of the moment, never a change: under one lock per engine, so that two tellings
cannot overtake each other, and again at the next probe if a telling failed.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from kvgate.engines.health import Health, Seen, State, step

if TYPE_CHECKING:
    from kvgate.engines.base import Trouble
    from kvgate.engines.capacity import Discovered
    from kvgate.engines.metrics import Gauges
    from kvgate.ledger.base import Ledger
    from kvgate_policies.types import EngineLimits

TRIAL_PREFILL_TOKENS = 1
"""On trial one prompt at a time: the ledger lets a request exceed the bound when nothing is outstanding."""

_AS_WISHED = frozenset({State.UP, State.TRIAL, State.DRAINING})

log = logging.getLogger(__name__)


class Engine:
    """Changed only by its backend; the ledger hears of it through `tell`."""

    def __init__(self, engine_id: str, rank: str | None, *, draining: bool = False) -> None:
        self.id = engine_id
        self.rank = rank
        """Its data-parallel rank, None when it is the only one behind its URL."""
        self.health = Health()
        self.gauges: Gauges | None = None
        self.found: Discovered | None = None
        self.barred: str | None = None
        """Why it can't be used although it answers."""
        self.draining = draining
        """By an operator's word."""
        self.told: EngineLimits | None = None
        """What the ledger knows of it."""
        self.timed_for_s: float | None = None
        """The `until_s` that a timer is set for."""
        self.canary = False
        """One is under way."""
        self._logged = State.UNKNOWN
        self._left = False
        self._telling = asyncio.Lock()

    @property
    def state(self) -> State:
        """As shown: an operator's word and unfitness before health, except where it isn't there at all."""
        if self.health.state in {State.UNKNOWN, State.DOWN}:
            return self.health.state
        if self.barred is not None or self.found is None or self.found.shape is None:
            return State.ERROR
        return State.DRAINING if self.draining else self.health.state

    @property
    def why(self) -> str:
        if self.state is State.DRAINING:
            return "told to give it no new work"
        if self.state is not State.ERROR:
            return self.health.why
        return self.barred or "; ".join(self.found.missing if self.found else ())

    @property
    def limits(self) -> EngineLimits | None:
        """What the ledger should know; None when it never heard of this engine and need not."""
        if self.found is None or self.found.shape is None:
            return None if self.told is None else replace(self.told, accepting=False)
        trial = self.state is State.TRIAL
        return self.found.limits(
            self.id,
            accepting=self.state in {State.UP, State.TRIAL},
            prefill_tokens=TRIAL_PREFILL_TOKENS if trial else None,
        )

    def see(self, event: Seen | Trouble, now_s: float, *, busy_hold_s: float) -> None:
        self.health = step(self.health, event, now_s, busy_hold_s=busy_hold_s)

    async def tell(self, ledger: Ledger) -> None:
        """Let the log and the ledger know what is so by now, if they don't already."""
        async with self._telling:
            if self._left:
                return
            self._log_state()
            limits = self.limits
            if limits is not None and limits != self.told:
                self._log_size(limits)
                await ledger.observe(limits)
                self.told = limits

    def _log_state(self) -> None:
        """The state that is shown, not the health alone: one that answers and can't be used is not up."""
        before, self._logged = self._logged, self.state
        if self._logged is not before:
            level = logging.INFO if self._logged in _AS_WISHED else logging.WARNING
            log.log(level, "engine %s: %s → %s: %s", self.id, before, self._logged, self.why)

    def _log_size(self, limits: EngineLimits) -> None:
        shape, told = limits.shape, self.told
        if told is None or (told.blocks, told.shape) != (limits.blocks, shape):
            text = "engine %s: %d usable KV blocks of %d tokens, a window of %d"
            log.info(text, self.id, limits.blocks, shape.block_size, shape.max_model_len)

    async def leave(self, ledger: Ledger) -> None:
        """Take it out of the ledger with all it held, for good: a probe that is still under way tells nothing."""
        async with self._telling:
            self._left = True
            if self.told is not None:
                await ledger.forget(self.id)
                self.told = None
