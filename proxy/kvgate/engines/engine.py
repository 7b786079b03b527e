"""One engine of the pool as this process keeps it: its health, its capacity, and what the ledger was told.

The ledger is told the wish of the moment, never a change: under one lock per engine, so that two tellings
cannot overtake each other, and again at the next probe if a telling failed.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from kvgate.engines.base import Pulse
from kvgate.engines.feedback import STALE_S, Feedback
from kvgate.engines.health import Health, Seen, State, step
from kvgate.engines.stall import Quiet, quiet_step
from kvgate_policies.placement import blocks_at_risk

if TYPE_CHECKING:
    from kvgate.engines.base import Trouble
    from kvgate.engines.capacity import Discovered
    from kvgate.engines.metrics import Gauges
    from kvgate.ledger.base import Ledger
    from kvgate_policies.types import EngineLimits, EngineUse

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
        self.gauges_s: float | None = None
        """When they were read."""
        self.feedback = Feedback()
        self.drift_blocks: float | None = None
        """Blocks in use at the last scrape, less those counted by the ledger then; None where one said nothing."""
        self.usable: int | None = None
        """Blocks that the ledger is to fill; None: all of them."""
        self.pulse = Pulse()
        self.quiet = Quiet()
        self.stalls = 0
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
        self._news = False
        """There are numbers that were not weighed yet."""
        self._is_old = False
        """Its numbers count for nothing, and that was logged."""
        self._moved = False
        self._beats = 0
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
        limits = self.found.limits(
            self.id,
            accepting=self.state in {State.UP, State.TRIAL},
            prefill_tokens=TRIAL_PREFILL_TOKENS if trial else None,
        )
        return limits if self.usable is None else replace(limits, blocks_usable=self.usable)

    def see(self, event: Seen | Trouble, now_s: float, *, busy_hold_s: float) -> None:
        was = self.health.state
        self.health = step(self.health, event, now_s, busy_hold_s=busy_hold_s)
        self.stalls += self.health.state is State.STALLED and was is not State.STALLED

    def take(self, gauges: Gauges, now_s: float) -> None:
        """Its numbers by a scrape that had them."""
        self._moved |= self.gauges is not None and gauges != self.gauges
        self.gauges, self.gauges_s, self._news = gauges, now_s, True

    @property
    def has_fresh(self) -> bool:
        """Whether there are numbers that were not weighed yet, and fresh."""
        return self._news and self.gauges is not None and self.feedback.is_fresh(self.gauges)

    def weigh(self, use: EngineUse | None, now_s: float, *, sums_of_all: bool, elected: bool) -> None:
        """What its numbers say against its capacity, for the next `tell`.

        `use`: what the ledger holds and knows of it. Who is not elected to speak for it goes by what was said.
        """
        if self._news:
            self.drift_blocks = _drift_blocks(self.gauges, use)
        if self._news and self.gauges is not None:
            self.feedback.read(self.gauges, use if sums_of_all else None, now_s)
        self._news = False
        known = None if use is None else use.limits.blocks_usable
        if self.told is not None and use is not None:
            self.told = replace(self.told, blocks_usable=known)
        blocks = 0 if self.found is None else self.found.blocks
        self.usable = self.feedback.usable(blocks, self.usable, now_s) if elected else known
        self._log_age(now_s)

    def is_contradicted(self, use: EngineUse | None) -> bool:
        """Whether the ledger knows another size of it: another process saw a restart that this one did not."""
        if use is None or self.told is None:
            return False
        return (use.limits.blocks, use.limits.shape) != (self.told.blocks, self.told.shape)

    def forget_past(self) -> None:
        """Another process runs there now."""
        self.gauges = self.gauges_s = self.usable = self.drift_blocks = None
        self.feedback, self.quiet = Feedback(), Quiet()

    @property
    def heard(self) -> bool:
        """Whether anything of an answer came since the last look."""
        return self.pulse.beats != self._beats

    def looked(self, use: EngineUse | None, now_s: float) -> bool:
        """A look at it is over; whether it has moved since the one before. `use`: what the ledger holds there."""
        moved, self._moved = self._moved or self.heard, False
        self._beats = self.pulse.beats
        runs = self.gauges is not None and bool(self.gauges.running) and not self.is_unread(now_s)
        at_work = runs or (use is not None and use.reservations > 0)
        self.quiet = quiet_step(self.quiet, moved=moved, at_work=at_work, now_s=now_s)
        return moved

    def is_unread(self, now_s: float) -> bool:
        """Whether its numbers were not to be had for a while: nothing is known of what it runs."""
        return self.gauges_s is None or now_s - self.gauges_s >= STALE_S

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

    def _log_age(self, now_s: float) -> None:
        is_old = self.feedback.fresh_s is not None and self.feedback.is_stale(now_s)
        if is_old and not self._is_old:
            text = "engine %s: no new numbers for %g s; the ledger goes by its own sums until there are"
            log.warning(text, self.id, STALE_S)
        elif self._is_old and not is_old:
            log.info("engine %s: its numbers move again", self.id)
        self._is_old = is_old

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


def _drift_blocks(gauges: Gauges | None, use: EngineUse | None) -> float | None:
    """Of one moment: what ends between two scrapes is gone from the ledger at once, and from the gauge at the next."""
    if gauges is None or gauges.kv_usage is None or use is None:
        return None
    return gauges.kv_usage * use.limits.blocks - blocks_at_risk(use)
