"""One backend URL and the engines behind it: probed in its own loop, judged by `health`, told to the ledger.

A probe reads `/metrics`, so that a restart (another start time, a counter that went back) and with it a new
capacity is seen within an interval, or where another process does that (`looks`) `/health`; `/v1/models` at the
start, after a restart and every `MODELS_INTERVAL_S`. What a backend once said of its capacity stays true while it
answers, even if its metrics go away: the ledger is the authority, the scrape only feeds it.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kvgate.engines.base import Target, Trouble
from kvgate.engines.capacity import Discovered, discover
from kvgate.engines.engine import Engine
from kvgate.engines.feedback import fullest
from kvgate.engines.health import Seen, State
from kvgate.engines.looks import Looks
from kvgate.engines.models import Card, window
from kvgate.engines.probe import Prober, Reading
from kvgate.engines.stall import Quiet
from kvgate.engines.status import BackendReport, EngineStatus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    import httpx

    from kvgate.clock import Clock
    from kvgate.config.settings import Settings
    from kvgate.engines.later import Later
    from kvgate.engines.metrics import CacheConfig, Gauges, Metrics
    from kvgate.ledger.base import Ledger
    from kvgate_policies.types import EngineUse

MODELS_INTERVAL_S = 10.0
"""Adapters are loaded by hand or by a controller; ten seconds until they can be asked for are soon enough."""
RESTART_GAP_S = 0.5
"""Start times of one process never differ; of two processes by more than this."""
RANK_HEADER = "X-data-parallel-rank"
SUMS_OF_ALL = frozenset({"memory", "redis"})
"""Modes in which the ledger knows what all processes hold: what an engine uses beyond that is foreign."""
ASKED_AGAIN = frozenset({State.SUSPENDED, State.STALLED})
"""States in which a canary is sent when the back-off is over."""
RESTART_SIGNS = frozenset({Trouble.CONNECT, Trouble.RESET, Seen.PROBE_REFUSED, Seen.PROBE_SILENT})
"""Whoever sees one of these scrapes at once."""

log = logging.getLogger(__name__)


class Backend:
    def __init__(
        self,
        url: str,
        *,
        settings: Settings,
        ledger: Ledger,
        clock: Clock,
        http: Callable[[], httpx.AsyncClient],
        later: Later,
        uses: Callable[[], Mapping[str, EngineUse]],
        learned: Callable[[], Awaitable[None]],
    ) -> None:
        """`uses` gives what the ledger held on each engine a moment ago. `learned` is called when a probe has read what
        the backend says of itself, before grants follow.
        """
        self.url = url
        self.engines: list[Engine] = [Engine(url, None)]
        self.cards: tuple[Card, ...] | None = None
        """None until `/v1/models` was read."""
        self.names: frozenset[str] = frozenset()
        self.turns = 0
        """How often it came back with other models altogether: who did is junior to who did not."""
        self.leaving = False
        self._settings = settings
        self._ledger = ledger
        self._clock = clock
        self._later = later
        self._uses = uses
        self._learned = learned
        key = settings.backend_api_key
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._prober = Prober(http, url, headers=self._headers, timeout_s=settings.probe_timeout_s)
        self._looks = Looks(url, ledger, clock, stall_after_s=settings.stall_after_s)
        self._cache: CacheConfig | None = None
        self._probed_at_s: float | None = None
        self._models_at_s: float | None = None
        self._started_s: float | None = None
        self._error: str | None = None
        self._models_error: str | None = None

    # What it is -------------------------------------------------------------------------------------------

    def target(self, engine: Engine) -> Target:
        rank = {} if engine.rank is None else {RANK_HEADER: engine.rank}
        return Target(engine.id, self.url, {**self._headers, **rank}, engine.pulse)

    def statuses(self) -> tuple[EngineStatus, ...]:
        now_s, elected = self._clock.monotonic(), self._looks.elected
        return tuple(self._status(engine, now_s, elected=elected) for engine in self.engines)

    def report(self) -> BackendReport:
        found = self.engines[0].found or Discovered(None, 0, 0, 0)
        return BackendReport(
            url=self.url,
            engines=self.statuses(),
            models=tuple(card.id for card in self.cards or ()),
            sources=found.sources,
            warnings=(*found.warnings, *filter(None, [self._soft_error()])),
            errors=tuple(self._errors()),
        )

    def _status(self, engine: Engine, now_s: float, *, elected: bool) -> EngineStatus:
        told, silent = engine.feedback, engine.feedback.is_stale(now_s)
        return EngineStatus(
            id=engine.id,
            url=self.url,
            state=engine.state,
            why=engine.why,
            limits=engine.limits,
            gauges=engine.gauges,
            gauges_age_s=_age_s(told.fresh_s, now_s),
            elected=elected,
            current=elected and not silent,
            trust=None if silent else told.trust.k,
            bias=None if silent else told.drift.bias,
            foreign_blocks=None if silent else told.drift.foreign_blocks,
            drift_blocks=None if silent else engine.drift_blocks,
            blocks_usable=engine.usable,
            stalled=engine.health.state is State.STALLED,
            stalls=engine.stalls,
            probe_age_s=_age_s(self._probed_at_s, now_s),
            last_error=self._last_error(),
            sources=engine.found.sources if engine.found else {},
            warnings=engine.found.warnings if engine.found else (),
            models=tuple(card.id for card in self.cards or ()),
        )

    def _answers(self) -> bool:
        return self.engines[0].health.state not in {State.UNKNOWN, State.DOWN}

    def _last_error(self) -> str | None:
        return "; ".join(filter(None, [self._error, self._models_error])) or None

    def _soft_error(self) -> str | None:
        return self._last_error() if self._answers() else None

    def _errors(self) -> list[str]:
        first = self.engines[0]
        if not self._answers():
            return [self._error or first.health.why or "not probed yet"]
        return [first.why] if first.state is State.ERROR else []

    # What is seen of it -----------------------------------------------------------------------------------

    async def probe(self) -> None:
        """Look once and let the ledger know. Bounded by a few times `probe_timeout_s`."""
        scrapes = self._looks.due or not self._answers()  # it may come back as another process
        before = self._uses()
        reading = await (self._prober.look() if scrapes else self._prober.glance())
        if scrapes:
            self._looks.scraped()
        self._error = reading.error
        if reading.seen is Seen.PROBE_GOOD:
            await self._learn(reading.metrics)
            await self._learned()
        self._probed_at_s = self._clock.monotonic()
        uses = self._uses()
        if any(engine.is_contradicted(uses.get(engine.id)) for engine in self.engines):
            self._looks.doubt()
        for engine in list(self.engines):
            await self._take_in(engine, reading.seen, uses.get(engine.id), before.get(engine.id))

    async def _take_in(
        self, engine: Engine, seen: Seen, use: EngineUse | None, before: EngineUse | None
    ) -> None:
        """What a probe found of one engine. `before`: what the ledger held there when it began."""
        beside = fullest(before, use, await self._settled(engine, use))
        now_s = self._clock.monotonic()
        engine.weigh(beside, now_s, sums_of_all=self._ledger.mode in SUMS_OF_ALL, elected=self._looks.elected)
        heard = engine.heard
        moved = engine.looked(use, now_s)
        if not (heard and seen is Seen.PROBE_SILENT):  # a loaded server answers probes late, and streams flow
            await self.see(engine, seen)
        if engine.health.state is State.STALLED and moved:
            await self.see(engine, Seen.MOVED)
        if engine.health.takes_work and engine.quiet.suspects(now_s, self._settings.stall_after_s):
            self._later.after(0.0, partial(self._canary, engine))

    async def _settled(self, engine: Engine, use: EngineUse | None) -> EngineUse | None:
        """Let the ledger know what the gauges show, if they are fresh; what it holds there at this moment."""
        gauges, limits = engine.gauges, engine.limits
        if not engine.has_fresh or limits is None or gauges is None or gauges.kv_usage is None:
            return None
        running, waiting = gauges.running, gauges.waiting
        seqs = None if running is None or waiting is None else round(running + waiting)
        held = await self._ledger.settle(engine.id, math.ceil(gauges.kv_usage * limits.blocks), seqs)
        return None if use is None or held is None else replace(use, reserved=held)

    async def see(self, engine: Engine, event: Seen | Trouble) -> None:
        """Take in something seen of an engine; grants follow before this returns."""
        if event is Seen.SUCCESS and engine.health.is_unblemished:
            return  # as nearly always: nothing changes, nobody needs to be told
        if event in RESTART_SIGNS:
            self._looks.doubt()
        gone = event in {Trouble.CONNECT, Seen.PROBE_REFUSED}  # of the process, so of all its engines
        for one in self.engines if gone else [engine]:
            one.see(event, self._clock.monotonic(), busy_hold_s=self._settings.busy_hold_s)
            await one.tell(self._ledger)
            self._follow(one)
        if event is Trouble.EMPTY and engine.health.state is State.UP:
            self._later.after(0.0, partial(self._canary, engine))

    async def tell(self) -> None:
        for engine in self.engines:
            await engine.tell(self._ledger)

    async def leave(self) -> None:
        for engine in self.engines:
            await engine.leave(self._ledger)

    def _follow(self, engine: Engine) -> None:
        """Set the timer that a hold or a suspension needs, once."""
        health = engine.health
        if health.state not in {State.BUSY, *ASKED_AGAIN} or engine.timed_for_s == health.until_s:
            return
        engine.timed_for_s = health.until_s
        delay_s = max(health.until_s - self._clock.monotonic(), 0.0)
        self._later.after(delay_s, partial(self._hold_over, engine))

    async def _hold_over(self, engine: Engine) -> None:
        engine.timed_for_s = None
        if engine.health.state in ASKED_AGAIN:
            await self._canary(engine)
        else:
            await self.see(engine, Seen.HOLD_OVER)

    async def _canary(self, engine: Engine) -> None:
        if engine.canary or engine not in self.engines:
            return
        engine.canary = True
        try:
            model = self.cards[0].id if self.cards else None
            seen = await self._prober.canary(model, self.target(engine).headers)
        finally:
            engine.canary = False
        await self.see(engine, self._verdict(engine, seen))

    def _verdict(self, engine: Engine, canary: Seen) -> Seen:
        """What a canary says of an engine that may be suspected: an answer of any kind clears it."""
        now_s = self._clock.monotonic()
        suspected = engine.quiet.suspects(now_s, self._settings.stall_after_s)
        if suspected and canary is Seen.CANARY_SILENT and engine.health.takes_work:
            return Seen.STALLED
        if canary is not Seen.CANARY_SILENT:
            engine.quiet = Quiet(now_s)
        return canary

    # What it says of itself -------------------------------------------------------------------------------

    async def _learn(self, metrics: Metrics | None) -> None:
        if metrics is not None:
            if self._restarted(metrics):
                await self._begin_anew()
            await self._arrange(metrics)
        if self._models_due():
            await self._read_models()
        max_model_len = None if self.cards is None else window(self.cards)
        found = discover(self._cache, max_model_len, self._settings)
        if found.shape is None:
            self._looks.doubt()
        for engine in self.engines:
            self._note(engine, found)

    def _restarted(self, now: Metrics) -> bool:
        if self._started_s is not None and now.process_start_time_s is not None:
            return abs(now.process_start_time_s - self._started_s) > RESTART_GAP_S
        return any(
            engine.gauges is not None and _went_back(engine.gauges, gauges)
            for engine, gauges in zip(self.engines, now.gauges.values(), strict=False)
        )

    async def _begin_anew(self) -> None:
        """Another process: what ran in the old one is gone, what it said of itself may be different."""
        log.warning("backend %s restarted: its reservations are void", self.url)
        self._models_at_s = None
        self._cache = None
        for engine in self.engines:
            engine.forget_past()
            engine.see(Seen.RESTARTED, self._clock.monotonic(), busy_hold_s=self._settings.busy_hold_s)
            if engine.told is not None:
                await self._ledger.void(engine.id)

    def _models_due(self) -> bool:
        last_s = self._models_at_s
        return last_s is None or self._clock.monotonic() - last_s >= MODELS_INTERVAL_S

    async def _read_models(self) -> None:
        models = await self._prober.models()
        if isinstance(models, Reading):
            self._models_error = models.error
            if self.cards is None and models.seen is Seen.PROBE_GOOD:
                self.cards = ()  # it answers, with something else: no vLLM server
            return
        self._models_error = None
        self._models_at_s = self._clock.monotonic()
        names = frozenset(card.id for card in models)
        if self.names and not names & self.names:
            self.turns += 1
        self.cards = models
        self.names = names

    async def _arrange(self, metrics: Metrics) -> None:
        """One engine for each rank; the engines stay the same objects while the ranks do."""
        self._started_s = metrics.process_start_time_s or self._started_s
        self._cache = metrics.cache or self._cache
        ranks = self._cache.ranks if self._cache else tuple(metrics.gauges)
        if not ranks:
            return
        ids = _ids(self.url, ranks)
        if list(ids) != [engine.id for engine in self.engines]:
            await self._reseat(ids)
        for engine, rank in zip(self.engines, ranks, strict=True):
            if rank in metrics.gauges:
                engine.take(metrics.gauges[rank], self._clock.monotonic())

    async def _reseat(self, ids: Mapping[str, str | None]) -> None:
        kept = {engine.id: engine for engine in self.engines}
        for engine in self.engines:
            if engine.id not in ids:
                await engine.leave(self._ledger)
        self.engines = [
            kept.get(engine_id) or Engine(engine_id, rank, draining=self.leaving)
            for engine_id, rank in ids.items()
        ]

    def _note(self, engine: Engine, found: Discovered) -> None:
        """Keep what was known where the backend has fallen silent about it."""
        if found.shape is None and engine.found is not None and engine.found.shape is not None:
            return
        if engine.found is None or engine.found.warnings != found.warnings:
            for warning in found.warnings:
                log.warning("engine %s: %s", engine.id, warning)
        engine.found = found


def _ids(url: str, ranks: Sequence[str]) -> dict[str, str | None]:
    """Engine id → rank; a backend with one engine has no rank to ask for."""
    if len(ranks) <= 1:
        return {url: None}
    return {f"{url}#{rank}": rank for rank in ranks}


def _age_s(then_s: float | None, now_s: float) -> float | None:
    return None if then_s is None else now_s - then_s


def _went_back(before: Gauges, now: Gauges) -> bool:
    """A counter that is lower than it was: only a new process does that."""
    pairs = ((before.generation_tokens, now.generation_tokens), (before.preemptions, now.preemptions))
    return any(old is not None and new is not None and new < old for old, new in pairs)
