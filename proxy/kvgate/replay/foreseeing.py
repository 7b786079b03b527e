"""Forecasts in virtual time: the `Forecaster` that serves over HTTP, with a clock that jumps and engines that count.

It is told of each request from its grant to its end, as the line tells it, and looks at those that run as often as it
does over HTTP before a ledger in memory. What it does then are coroutines that wait for nothing here, so they are run
to their end on the spot; no event loop is needed.

Sending requests back to the queue (`revocable`) is left out, and nothing is known at the beginning, as after the very
first start of a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from kvgate.forecasting import Forecaster
from kvgate.forecasting.rates import Rates
from kvgate.sse import Finish

if TYPE_CHECKING:
    from kvgate.admission.pricing import Priced
    from kvgate.forecasting import Running
    from kvgate.ledger.base import Grant, Ledger
    from kvgate.ledger.core import LedgerCore
    from kvgate.replay.engine_base import Seen
    from kvgate_policies.occupancy import Occupancy
    from kvgate_policies.types import KVCost, LedgerView, TenantPolicy

BEAT_S = 0.25
"""As over HTTP: `ledger_heartbeat_s`."""


class Held:
    """What a request holds, which forecasts make anew while it runs."""

    __slots__ = ("changed", "cost", "released")

    def __init__(self, cost: KVCost, changed: Callable[[int], None]) -> None:
        """`changed` is told by how many blocks its use grew."""
        self.cost = cost
        self.released = False
        self.changed = changed

    @property
    def blocks_apart(self) -> int:
        """None: prompts share nothing in a replay."""
        return 0

    def expect(self, expected: Occupancy) -> None:
        before = self.cost.use_blocks
        self.cost = replace(self.cost, expected=expected)
        self.changed(self.cost.use_blocks - before)


@dataclass(slots=True)
class Counted:
    """A stream as it would be counted beside it."""

    count: Callable[[], int]
    completion_tokens: int | None = None

    @property
    def tokens_seen(self) -> int:
        return self.count()


class _Ledger:
    """The part of a ledger that a forecaster asks for."""

    def __init__(self, core: LedgerCore, now_s: Callable[[], float]) -> None:
        self._core, self._now_s = core, now_s

    async def renew_many(self, costs: Mapping[str, KVCost]) -> None:
        self._core.renew_many(costs)

    def view(self) -> LedgerView:
        return self._core.view(self._now_s())


@dataclass(frozen=True, slots=True)
class _Counters:
    running: float
    generation_tokens: float
    steps: float


@dataclass(slots=True)
class _Engine:
    """As it was scraped last."""

    id: str
    now_s: Callable[[], float]
    gauges: _Counters | None = None
    read_s: float = 0.0

    @property
    def gauges_age_s(self) -> float:
        return self.now_s() - self.read_s


class _Clock:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self.monotonic = now_s


class Foreseeing:
    """What forecasts are to a replay."""

    def __init__(
        self,
        core: LedgerCore,
        now_s: Callable[[], float],
        lengths_changed: Callable[[frozenset[str]], None],
        prefill_tokens_per_s: float,
        engine_ids: Iterable[str],
    ) -> None:
        """`lengths_changed` is told whose answers got longer than forecast, or are known again."""
        self._lengths_changed = lengths_changed
        self._engines = [_Engine(engine_id, now_s) for engine_id in engine_ids]
        # Of the protocols only what is in the classes above is used by a forecaster.
        self._forecaster = Forecaster(
            cast("Ledger", _Ledger(core, now_s)),
            _Clock(now_s),
            rates=Rates(lambda: self._engines),
            beat_s=BEAT_S,
            waiting=lambda: core.queued,
            prefill_tokens_per_s=prefill_tokens_per_s,
        )
        self._beats_next = True
        self._forecaster.on_change = self._changed

    def price(self, priced: Priced, tenant: TenantPolicy) -> Priced:
        """By what is known of lengths now; as it is for a tenant without forecasts."""
        outlook = priced.outlook
        if outlook is None or tenant.reservation == "guaranteed":
            return priced
        peaks = {shape: replace(cost, expected=None) for shape, cost in priced.costs.items()}
        costs = {shape: self._forecaster.cost(tenant, outlook, shape, peak) for shape, peak in peaks.items()}
        return replace(priced, costs=costs, output_expected=self._forecaster.expected_output(tenant, outlook))

    def begin(
        self,
        held: Held,
        grant: Grant,
        priced: Priced,
        tenant: TenantPolicy,
        counted: Counted | None,
    ) -> Running:
        """It was granted; `counted` for one that streams."""
        run = self._forecaster.running(held, grant, priced.outlook, replace(tenant, revocable=False))
        run.__enter__()  # it is left in another event: no block could hold it
        if counted is not None:
            run.follows(counted)
        return run

    def end(self, run: Running, tokens: int | None, *, by_itself: bool) -> None:
        """It is over: whole with so many tokens of all its sequences, or broken off (None)."""
        if tokens is not None:
            run.ended(Finish.STOP if by_itself else Finish.LIMIT, tokens)
            if isinstance(run.meter, Counted):
                run.meter.completion_tokens = tokens
        run.__exit__(None, None, None)

    def scraped(self, seen: Mapping[str, Seen], generated_tokens: Callable[[str], int]) -> None:
        """The engines were read, and are asked for the output tokens that each has made so far."""
        for engine in self._engines:
            now = seen[engine.id]
            engine.read_s = engine.now_s()
            engine.gauges = _Counters(now.running, generated_tokens(engine.id), now.steps)

    def look(self) -> float:
        """What they hold is something else by now; the seconds until the next look."""
        forecaster = self._forecaster
        _run_to_its_end(forecaster.beat() if self._beats_next else forecaster.look())
        self._beats_next = forecaster.beats_next
        return forecaster.pause_s

    async def _changed(self, tenants: frozenset[str]) -> None:
        self._lengths_changed(tenants)


def _run_to_its_end(work: Coroutine[object, None, None]) -> None:
    """It waits for nothing but its turn, which is always now."""
    try:
        while True:
            work.send(None)
    except StopIteration:
        return
