"""What a pool knows of how long its answers get, and all of its requests that run.

    cost = forecaster.cost(tenant, outlook, shape, peak)         pricing
    with forecaster.running(held, grant, outlook, tenant) as run:
        run.follows(meter) … run.ended(finish, tokens)           from the grant to the end of the attempt
    await forecaster.beat()                                      four times a second, by `serving`

Promises:

* Every request teaches, of whichever kind: those with a forecast while they run, the others at their end, so that what
  forecasts would say can be judged before they are used. What the client left or an engine broke off teaches as far as
  it came. Several sequences teach nothing: only their sum is known.
* A tenant whose policy is `guaranteed`, or whose lengths just changed, reserves the peak at its grant.
* A vector is made anew before the request has grown beyond what it covers. At most `VECTORS_MAX` in a beat, those that
  have waited longest first, and after each `SLICE` others run: a beat takes long, but never stops the streams.
* Pricing and ending wait for nothing, and fail for nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from kvgate.forecasting.keeping import Keeping, Nowhere
from kvgate.forecasting.rates import TOKENS_PER_S_UNKNOWN, Rates
from kvgate.forecasting.revoking import Revoking
from kvgate.forecasting.running import TOLD_AFTER_S, TOLD_SHARE, Held, Running
from kvgate.forecasting.watching import ForecastWatch, NoForecastWatch
from kvgate.sse import Finish
from kvgate_policies.forecast import POOL, Lengths
from kvgate_policies.forecast_occupancy import LAG_TOKENS
from kvgate_policies.forecast_request import expected_output, longer_than_said, request_occupancy
from kvgate_policies.kv_cost import output_tokens

if TYPE_CHECKING:
    from kvgate.clock import Clock
    from kvgate.ledger.base import Grant, Ledger
    from kvgate_policies.forecast_request import Outlook
    from kvgate_policies.forecast_survival import Survival
    from kvgate_policies.occupancy import Occupancy
    from kvgate_policies.types import EngineShape, KVCost, TenantPolicy

BEAT_S = 0.25
"""Between two beats: eight steps of a busy engine, within what a vector covers (`LAG_TOKENS`)."""
VECTORS_MAX = 2000
"""Vectors made anew in one beat, about 30 ms of it: with more that run, each waits for its turn."""
SLICE = 64
"""Requests looked at before others run: about a millisecond."""
PREFILL_TOKENS_PER_S = 8192
"""Where nobody says how fast prompts are read."""
EVENT_WEIGHT = 0.05
"""Of the newest stream in the mean tokens of an event: the mean of the last few dozen."""
EVENT_TOKENS_MAX = 64.0
"""Of one event; what is above it is a usage that is wrong."""

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
        prefill_tokens_per_s: float = PREFILL_TOKENS_PER_S,
    ) -> None:
        self.lengths = Lengths()
        self.on_change: Callable[[frozenset[str]], Awaitable[None]] | None = None
        """Called with the tenants (`POOL`: all) that turned guarded, or are no more: who waits has another price."""
        self._ledger = ledger
        self._clock = clock
        self._rates = rates or Rates()
        self._watch = watch or NoForecastWatch()
        self._keeping = keeping or Nowhere()
        self._beat_s = beat_s
        self._prefill_tokens_per_s = prefill_tokens_per_s
        self._running: OrderedDict[str, Running] = OrderedDict()
        """Those with a forecast; the one whose vector is newest at the end."""
        self._revoking = Revoking(ledger, self._watch)
        self._guarded: frozenset[str] = frozenset()
        self._changes = 0
        """Changes of all curves that make every vector wrong."""
        self._tokens_per_event = 1.0

    # Prices

    def cost(self, tenant: TenantPolicy, outlook: Outlook, shape: EngineShape, peak: KVCost) -> KVCost:
        """What a request costs when it starts, `peak` being its guaranteed cost there."""
        if tenant.reservation == "guaranteed" or self.lengths.guarded(tenant.name):
            return peak
        return replace(peak, expected=request_occupancy(self.lengths.curve(tenant.name), outlook, shape))

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
        self._learn_events(run)
        outlook = run.outlook
        if outlook is None or not outlook.telling or run.revoked:
            return
        length = self._length(run)
        self._tell(run, length or run.told)
        if length and run.finish is not None:
            self._judge(run, outlook, length)
        if length > outlook.sure and run.finish is Finish.STOP and run.cohort is not None:
            self.lengths.end(run.tenant.name, run.cohort, length)

    def corrected(self, run: Running, cost: KVCost) -> KVCost:
        """For `Running`: what it costs with the prompt that it really has."""
        if run.outlook is None:
            return cost
        curve = self.lengths.curve(run.tenant.name)
        return replace(cost, expected=_vector(curve, run, run.outlook))

    def _length(self, run: Running) -> int:
        """Tokens of its one sequence, by the engine's word or else as they were counted; 0 where nothing says it."""
        if run.meter is None:
            return run.length or 0
        if run.length is not None and run.meter.completion_tokens:
            return run.length
        return run.seen() if run.finish is None else round(run.seen() * self._tokens_per_event)

    def _learn_events(self, run: Running) -> None:
        meter = run.meter
        if meter is None or run.finish is None or not meter.completion_tokens or not meter.tokens_seen:
            return
        found = min(max(meter.completion_tokens / meter.tokens_seen, 1.0), EVENT_TOKENS_MAX)
        self._tokens_per_event += EVENT_WEIGHT * (found - self._tokens_per_event)

    def _tell(self, run: Running, length: int) -> None:
        """Of tokens that could have been the last. What never got one is not even counted as begun."""
        outlook, tenant = run.outlook, run.tenant.name
        if outlook is None or not outlook.telling or length <= run.told:
            return
        if run.cohort is None:
            run.cohort = self.lengths.start(tenant)
        self.lengths.reach(tenant, run.cohort, max(run.told, outlook.sure), length)
        run.told = length

    def _judge(self, run: Running, outlook: Outlook, length: int) -> None:
        limit = output_tokens(run.shape, outlook.prompts[0], outlook.max_tokens)
        came_to = limit if run.finish is Finish.LIMIT else min(length, limit)
        for quantile, exceeded in longer_than_said(run.curve, came_to, limit=limit, sure=outlook.sure):
            self._watch.calibrated(quantile, exceeded=exceeded)

    # Beats

    async def beat(self) -> None:
        """Learn from those that run, let the ledger know what they will hold, and look for changes."""
        now_s = self._clock.monotonic()
        self._rates.look(now_s)
        anew = await self._refresh(now_s)
        for start in range(0, len(anew), SLICE):
            await self._renew(anew[start : start + SLICE])
        await self._review()
        self._revoking.look(self._running.values(), now_s)

    async def _refresh(self, now_s: float) -> list[Running]:
        """Look at all. Learn from those whose vectors are due, and make these anew; whose they are."""
        anew: list[Running] = []
        streamed: dict[str, tuple[int, int]] = {}
        for index, request_id in enumerate(list(self._running), start=1):
            run = self._running.get(request_id)
            if run is not None and not run.held.released:
                tokens_per_s = self._rates.tokens_per_s(run.engine_id) or TOKENS_PER_S_UNKNOWN
                grown = run.advance(now_s, self._tokens_per_event, tokens_per_s)
                if run.meter is not None and grown:
                    tokens, streams = streamed.get(run.engine_id, (0, 0))
                    streamed[run.engine_id] = (tokens + grown, streams + 1)
                if self._is_due(run, grown) and len(anew) < VECTORS_MAX:
                    self._tell(run, _surely(run, tokens_per_s))
                    self._expect(run)
                    anew.append(run)
            if index % SLICE == 0:
                await asyncio.sleep(0)
        for engine_id, (tokens, streams) in streamed.items():
            self._rates.streamed(engine_id, tokens, streams * self._beat_s)
        return anew

    async def _renew(self, anew: list[Running]) -> None:
        """What they cost at this moment: while others ran some may have ended, or shown their first token."""
        costs = {run.request_id: run.held.cost for run in anew if not run.held.released}
        if costs:
            await self._ledger.renew_many(costs)
            await asyncio.sleep(0)

    def _is_due(self, run: Running, grown: int) -> bool:
        """Whether it might outgrow its vector before the next beat, or all are wrong."""
        if run.reshaped != self._changes:
            return True
        return run.reached > run.vector_at and run.reached + grown > run.vector_at + LAG_TOKENS

    def _expect(self, run: Running) -> None:
        assert run.outlook is not None  # noqa: S101  such are not among those that run
        curve = self.lengths.curve(run.tenant.name)
        run.held.expect(_vector(curve, run, run.outlook))
        run.vector_at, run.reshaped = run.reached, self._changes
        self._running.move_to_end(run.request_id)

    async def _review(self) -> None:
        longer = self.lengths.review()
        guarded = self.lengths.guarded_names
        if not longer and guarded == self._guarded:
            return
        relearned, changed = self._guarded - guarded, self._guarded ^ guarded | frozenset(longer)
        self._guarded = guarded
        self._changes += 1
        self._watch.guarded(len(guarded))
        for name in longer:
            self._watch.lengths_changed(name, "longer")
            log.warning(
                "the answers of %s have become longer than forecast: peaks are reserved", _whose(name)
            )
        for name in relearned:
            self._watch.lengths_changed(name, "relearned")
            log.info("the answers of %s are known well enough again: forecasts are reserved", _whose(name))
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
            await asyncio.sleep(self._beat_s)
            try:
                await self.beat()
            except Exception:  # a beat that fails must not be the last one
                log.exception("looking at those that run failed")


def _surely(run: Running, tokens_per_s: float) -> int:
    """Tokens that may be learned from while it runs."""
    if run.meter is not None:
        return run.seen()
    return int(TOLD_SHARE * (run.reached - TOLD_AFTER_S * tokens_per_s))


def _vector(curve: Survival, run: Running, outlook: Outlook) -> Occupancy:
    """What it will hold from now on, less what others hold too: that does not end with it."""
    return request_occupancy(curve, outlook, run.shape, run.reached, apart=run.held.blocks_apart)


def _whose(name: str) -> str:
    return "the pool" if name == POOL else f"tenant {name}"
