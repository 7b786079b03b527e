"""What a pool knows of how long its answers get, and all of its requests that run.

    cost = forecaster.cost(tenant, outlook, shape, peak)         pricing
    with forecaster.running(held, grant, outlook, tenant) as run:
        run.follows(meter) … run.ended(finish, tokens)           from the grant to the end of the attempt
    await forecaster.beat()                                      four times a second, by `serving`
    await forecaster.look()                                      in between, while requests wait (`pace`)

Promises:

* Every request teaches, of whichever kind: those with a forecast while they run, the others at their end (`learning`).
* A tenant whose policy is `guaranteed`, or whose lengths just changed, reserves the peak at its grant; in the second
  case until its lengths are known again.
* A vector is made anew before the request has grown beyond what it covers (`pace`). At most `VECTORS_MAX` at a look,
  those that have waited longest first, and after each `SLICE` others run: a look takes long, but never stops the
  streams.
* Pricing and ending wait for nothing, and fail for nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from kvgate.forecasting.keeping import Keeping, Nowhere
from kvgate.forecasting.learning import Learning
from kvgate.forecasting.pace import SLICE, Pace
from kvgate.forecasting.rates import TOKENS_PER_S_UNKNOWN, Rates
from kvgate.forecasting.revoking import Revoking
from kvgate.forecasting.running import TOLD_AFTER_S, TOLD_SHARE, Held, Running
from kvgate.forecasting.watching import ForecastWatch, NoForecastWatch
from kvgate_policies.forecast import POOL, Lengths
from kvgate_policies.forecast_request import expected_output, request_occupancy

if TYPE_CHECKING:
    from kvgate.clock import Clock
    from kvgate.forecasting.rates import Speed
    from kvgate.ledger.base import Grant, Ledger
    from kvgate_policies.forecast_request import Outlook
    from kvgate_policies.forecast_survival import Survival
    from kvgate_policies.occupancy import Occupancy
    from kvgate_policies.types import EngineShape, KVCost, TenantPolicy

BEAT_S = 0.25
"""Between two beats: what is learned, and what is told to others, is not more urgent."""
BEAT_EARLY = 0.1
"""Of that time, by which a beat may come early, at the look that is next to it."""
VECTORS_MAX = 2000
"""Vectors made anew at one look, about 60 ms of it: with more that run, each waits for its turn."""
PREFILL_TOKENS_PER_S = 8192
"""Where nobody says how fast prompts are read."""

log = logging.getLogger(__name__)


class Forecaster:
    """One for each pool. Belongs to one event loop."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        *,
        rates: Rates | None = None,
        watch: ForecastWatch | None = None,
        keeping: Keeping | None = None,
        beat_s: float = BEAT_S,
        told_s: float = 0.0,
        waiting: Callable[[], int] | None = None,
        prefill_tokens_per_s: float = PREFILL_TOKENS_PER_S,
    ) -> None:
        """`told_s` and `waiting` as in `Pace`."""
        self.lengths = Lengths()
        self.on_change: Callable[[frozenset[str]], Awaitable[None]] | None = None
        """Called with the tenants (`POOL`: all) that turned guarded, or are no more: who waits has another price."""
        self._ledger = ledger
        self._clock = clock
        self._rates = rates or Rates()
        self._watch = watch or NoForecastWatch()
        self._keeping = keeping or Nowhere()
        self._pace = Pace(self._rates, pause_s_max=beat_s, told_s=told_s, waiting=waiting)
        self._beat_s = beat_s
        self._beaten_s = self._looked_s = clock.monotonic()
        self._prefill_tokens_per_s = prefill_tokens_per_s
        self._running: OrderedDict[str, Running] = OrderedDict()
        """Those with a forecast; the one whose vector is newest at the end."""
        self._revoking = Revoking(ledger, self._watch)
        self._guarded: frozenset[str] = frozenset()
        self._changes = 0
        """Changes of all curves that make every vector wrong."""
        self._learning = Learning(self.lengths, self._watch)
        self._streamed: dict[str, tuple[int, float]] = {}
        """By engine: tokens that streams brought since the last beat, and in how many seconds of running."""

    # Prices

    def cost(self, tenant: TenantPolicy, outlook: Outlook, shape: EngineShape, peak: KVCost) -> KVCost:
        """What a request costs when it starts, `peak` being its guaranteed cost there."""
        if tenant.reservation == "guaranteed" or self.lengths.guarded(tenant.name):
            return peak
        curve = self.lengths.curve(tenant.name)
        expected = request_occupancy(curve, outlook, shape, lag_tokens=self._pace.lag_at_start)
        return replace(peak, expected=expected.at_most(peak.blocks))

    def expected_output(self, tenant: TenantPolicy, outlook: Outlook) -> int | None:
        """Output tokens of all its sequences; None where as many as may come are charged."""
        if tenant.reservation == "guaranteed":
            return None
        return expected_output(self.lengths.curve(tenant.name), outlook)

    # Those that run

    def running(
        self, held: Held, grant: Grant, outlook: Outlook | None, tenant: TenantPolicy, revocations: int = 0
    ) -> Running:
        """From here on; enter it. `revocations` is how often it was sent back already."""
        prefill_s = 0.0 if outlook is None else sum(outlook.prompts) / self._prefill_tokens_per_s
        return Running(
            self,
            held,
            grant,
            outlook,
            tenant,
            curve=self.lengths.curve(tenant.name),
            since_s=self._clock.monotonic() + prefill_s,
            revocations=revocations,
        )

    def begins(self, run: Running) -> None:
        """For `Running`."""
        if run.outlook is not None and run.tenant.reservation != "guaranteed":
            run.reshaped = self._changes
            self._running[run.request_id] = run

    def is_over(self, run: Running) -> None:
        """For `Running`: let its length be known, as far as it is."""
        self._running.pop(run.request_id, None)
        self._learning.ended(run)

    def corrected(self, run: Running, cost: KVCost) -> KVCost:
        """For `Running`: what it costs with the prompt that it really has."""
        if run.outlook is None:
            return cost
        curve = self.lengths.curve(run.tenant.name)
        return replace(cost, expected=_vector(curve, run, run.outlook, self._pace.lag_at_start))

    # Beats

    async def beat(self) -> None:
        """Learn from those that run, let the ledger know what they will hold, and look for changes."""
        self._beaten_s = self._clock.monotonic()
        self._rates.look(self._beaten_s)
        await self.look()
        streamed, self._streamed = self._streamed, {}
        for engine_id, (tokens, running_s) in streamed.items():
            self._rates.streamed(engine_id, tokens, running_s)
        await self._review()
        self._revoking.look(self._running.values(), self._beaten_s)

    async def look(self) -> None:
        """Let the ledger know what those that run will hold."""
        now_s = self._clock.monotonic()
        span_s, self._looked_s = now_s - self._looked_s, now_s
        self._pace.plan(len(self._running), span_s, self._learning.tokens_per_event)
        anew = await self._refresh(now_s, span_s)
        for start in range(0, len(anew), SLICE):
            await self._renew(anew[start : start + SLICE])

    @property
    def pause_s(self) -> float:
        """Until the next look."""
        return self._pace.pause_s

    @property
    def beats_next(self) -> bool:
        """Whether a beat is due by then."""
        return self._clock.monotonic() + self.pause_s - self._beaten_s >= (1.0 - BEAT_EARLY) * self._beat_s

    async def _refresh(self, now_s: float, span_s: float) -> list[Running]:
        """Look at all, as they were left `span_s` ago. Learn from those whose vectors are due, and make these anew;
        whose they are.
        """
        anew: list[Running] = []
        speed_of = cache(self._rates.speed)
        for index, request_id in enumerate(list(self._running), start=1):
            run = self._running.get(request_id)
            if run is not None and not run.held.released:
                speed = speed_of(run.engine_id)
                grown = run.advance(now_s, self._learning.tokens_per_event, speed)
                self._note_pace(run, grown, span_s)
                if self._is_due(run, grown) and len(anew) < VECTORS_MAX:
                    self._learning.tell(run, _surely(run, speed))
                    if self._expect(run, self._pace.lag_tokens(run, grown)):
                        anew.append(run)
            if index % SLICE == 0:
                await asyncio.sleep(0)
        return anew

    def _note_pace(self, run: Running, grown: int, span_s: float) -> None:
        """Of a stream that had begun by the last look: what came before may have taken any time."""
        if run.meter is not None and run.reached > grown:
            tokens, running_s = self._streamed.get(run.engine_id, (0, 0.0))
            self._streamed[run.engine_id] = (tokens + grown, running_s + span_s)

    async def _renew(self, anew: list[Running]) -> None:
        """What they cost at this moment: while others ran some may have ended, or shown their first token."""
        costs = {run.request_id: run.held.cost for run in anew if not run.held.released}
        if costs:
            await self._ledger.renew_many(costs)
            await asyncio.sleep(0)

    def _is_due(self, run: Running, grown: int) -> bool:
        """Whether it might outgrow its vector before the next look, or all are wrong."""
        return run.reshaped != self._changes or self._pace.is_due(run, grown)

    def _expect(self, run: Running, lag_tokens: int) -> bool:
        """Make its vector anew. False: it was granted its peak, and keeps it as long as its tenant is guarded."""
        assert run.outlook is not None  # noqa: S101  such are not among those that run
        keeps = run.held.cost.expected is None and self.lengths.guarded(run.tenant.name)
        if not keeps:
            curve = self.lengths.curve(run.tenant.name)
            run.held.expect(_vector(curve, run, run.outlook, lag_tokens))
        run.vector_at, run.covered, run.reshaped = run.reached, run.reached + lag_tokens, self._changes
        self._running.move_to_end(run.request_id)
        return not keeps

    async def _review(self) -> None:
        longer = self.lengths.review(self._beaten_s)
        guarded = self.lengths.guarded_names
        if not longer and guarded == self._guarded:
            return
        relearned, changed = self._guarded - guarded, self._guarded ^ guarded | frozenset(longer)
        self._guarded = guarded
        self._changes += 1
        self._watch.guarded(len(guarded - {POOL}))
        for name in longer:
            self._watch.lengths_changed(name, "longer")
            log.warning(
                "nothing shows that the answers of %s are still as they were: peaks are reserved"
                if self.lengths.is_suspected(name)
                else "the answers of %s have become longer than forecast: peaks are reserved",
                _whose(name),
            )
        for name in relearned:
            self._watch.lengths_changed(name, "relearned")
            log.info("the answers of %s are forecast again", _whose(name))
        if self.on_change is not None:
            await self.on_change(changed)

    # Life

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[Forecaster]:
        """Beat, and keep what is learned, until the block ends; begin with what was kept."""
        async with self._keeping.serving(self.lengths):
            beats = asyncio.create_task(self._beats())
            try:
                yield self
            finally:
                beats.cancel()
                await asyncio.gather(beats, return_exceptions=True)

    async def _beats(self) -> None:
        while True:
            beats = self.beats_next
            await asyncio.sleep(self.pause_s)
            try:
                await (self.beat() if beats else self.look())
            except Exception:  # a beat that fails must not be the last one
                log.exception("looking at those that run failed")


def _surely(run: Running, speed: Speed | None) -> int:
    """Tokens that may be learned from while it runs."""
    if run.meter is not None:
        return run.settled
    tokens_per_s = TOKENS_PER_S_UNKNOWN if speed is None else speed.likely
    return int(TOLD_SHARE * (run.reached - TOLD_AFTER_S * tokens_per_s))


def _vector(curve: Survival, run: Running, outlook: Outlook, lag_tokens: int) -> Occupancy:
    """What it will hold from now on, less what others hold too: that does not end with it."""
    apart = run.held.blocks_apart
    return request_occupancy(curve, outlook, run.shape, run.reached, apart, lag_tokens)


def _whose(name: str) -> str:
    return "the pool" if name == POOL else f"tenant {name}"
