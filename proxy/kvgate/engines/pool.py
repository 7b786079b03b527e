"""The engines of one pool: which there are, how they are, and where the next request may go.

Each backend is probed in its own loop with its own connections, so that one that hangs delays no other.
What a probe or a request finds out is judged in `health`, kept in `engine`, and told to the ledger, which
is the only place where grants are decided.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from contextlib import asynccontextmanager
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any

import anyio
import httpx

from kvgate.engines.backend import Backend
from kvgate.engines.health import Seen, State
from kvgate.engines.later import Later
from kvgate.engines.models import merged, strangers
from kvgate.engines.tokenize import CONCURRENT_MAX, Tokenizer
from kvgate.engines.transport import AiohttpTransport

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping

    from kvgate.clock import Clock
    from kvgate.config.settings import Settings
    from kvgate.engines.base import Target, Trouble
    from kvgate.engines.capacity import Discovered
    from kvgate.engines.engine import Engine
    from kvgate.engines.models import Card
    from kvgate.engines.status import BackendReport, EngineStatus
    from kvgate.ledger.base import Ledger
    from kvgate_policies.types import EngineShape, EngineUse

JITTER = 0.1
"""Of the probe interval, either way: many processes that start together don't probe together for ever."""
PROBE_CONNECTIONS_MAX = 8
"""To one backend: a probe, a canary, and those that were cancelled and are being closed."""
CLOSE_S_MAX = 2.0
"""For closing connections, which waits for nobody but the event loop."""
VIEW_S_MAX = 0.2
"""So old may be what the ledger is taken to hold: many backends are probed each second, and a view has all of it."""
IN_USE = frozenset({State.UP, State.TRIAL, State.BUSY})
"""States in which an engine takes work now or in a moment."""

log = logging.getLogger(__name__)


class EnginePool:
    """Implements `engines.base.Engines`. Belongs to one event loop."""

    def __init__(
        self, settings: Settings, ledger: Ledger, clock: Clock, http: httpx.AsyncClient | None = None
    ) -> None:
        """`http` serves all questions to all backends (tests); without it each backend has its own client."""
        self.on_shapes: Callable[[], Awaitable[None]] | None = None
        """Called after an engine of a new shape joined: what is queued has to be priced on it."""
        self._settings = settings
        self._ledger = ledger
        self._clock = clock
        self._given = http
        self._later = Later()
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._tokenizer: Tokenizer | None = None
        self._backends: dict[str, Backend] = {}
        self._probing: asyncio.TaskGroup | None = None
        self._shapes: frozenset[EngineShape] = frozenset()
        """Those that admission was told of last."""
        self._shapes_found: frozenset[EngineShape] = frozenset()
        self._shapes_from: tuple[Discovered | None, ...] = ()
        """What `_shapes_found` was made of: asked for at every request, it changes at a probe at most."""
        self._uses: Mapping[str, EngineUse] = {}
        self._uses_s = -math.inf
        self._turn = 0
        self._users = 0
        for url in settings.backends:
            self._join(url)

    # What admission asks ----------------------------------------------------------------------------------

    def shapes(self) -> frozenset[EngineShape]:
        found = tuple(engine.found for engine in self._engines())
        if len(found) != len(self._shapes_from) or not all(map(is_, found, self._shapes_from)):
            self._shapes_found = frozenset(
                one.shape for one in found if one is not None and one.shape is not None
            )
            self._shapes_from = found
        return self._shapes_found

    def available(self) -> frozenset[str]:
        return frozenset(engine.id for engine in self._engines() if engine.state in IN_USE)

    def serves(self, model: str | None) -> bool:
        """True as well while no backend has told its models: then it's the engines that are missing."""
        if model is None or self.knows(model):
            return True
        return not any(backend.names for backend in self._backends.values())

    def knows(self, model: str) -> bool:
        """Whether an engine of the pool has said that it answers to this name, up or not."""
        return any(model in backend.names for backend in self._fit())

    def base_name(self) -> str | None:
        """The name of the pool's own model, the first of those that are no adapters; None while none is known."""
        cards = [card for backend in self._fit() for card in backend.cards or ()]
        return next((card.id for card in (*_bases(cards), *cards)), None)

    def without(self, model: str | None) -> frozenset[str]:
        if model is None:
            return frozenset()
        lacking = (b for b in self._backends.values() if b.names and model not in b.names)
        return frozenset(engine.id for backend in lacking for engine in backend.engines)

    def model_names(self) -> tuple[str, ...]:
        return tuple(card["id"] for card in self.models())

    def models(self) -> list[dict[str, Any]]:
        """One card for each name, as the first backend that serves it prints it, those that are down too."""
        return [dict(card.raw) for card in merged(backend.cards or () for backend in self._fit())]

    def target(self, engine_id: str) -> Target | None:
        found = self._find(engine_id)
        return None if found is None else found[0].target(found[1])

    def targets(self) -> tuple[Target, ...]:
        """One for each backend: its ranks know the same."""
        return tuple(
            backend.target(engine)
            for backend in self._backends.values()
            for engine in [next((e for e in backend.engines if e.state in IN_USE), None)]
            if engine is not None
        )

    def any_target(self) -> Target | None:
        targets = self.targets()
        self._turn += 1
        return targets[self._turn % len(targets)] if targets else None

    async def tokenize(self, body: Mapping[str, object]) -> int:
        return await self._tokenizing().count(body)

    async def token_ids(self, body: Mapping[str, object]) -> bytes:
        """Those of one prompt by an engine's `POST /tokenize`, four bytes each. Raises as `tokenize`."""
        return await self._tokenizing().ids(body)

    def _tokenizing(self) -> Tokenizer:
        if self._tokenizer is None:
            self._tokenizer = Tokenizer(partial(self._client, ""), self.any_target)
        return self._tokenizer

    async def report(self, engine_id: str, trouble: Trouble) -> None:
        await self._see(engine_id, trouble)

    async def succeeded(self, engine_id: str) -> None:
        await self._see(engine_id, Seen.SUCCESS)

    async def _see(self, engine_id: str, event: Seen | Trouble) -> None:
        """An engine that left meanwhile has nothing to be told."""
        found = self._find(engine_id)
        if found is not None:
            await found[0].see(found[1], event)

    # What operators ask -----------------------------------------------------------------------------------

    def backends(self) -> tuple[str, ...]:
        """The URLs in the pool, those on their way out left out."""
        return tuple(url for url, backend in self._backends.items() if not backend.leaving)

    def snapshot(self) -> tuple[EngineStatus, ...]:
        return tuple(status for backend in self._backends.values() for status in backend.statuses())

    async def drain(self, engine_id: str) -> None:
        """No new work for an engine, or for all engines of a URL. Raises KeyError when there is none."""
        await self._set_draining(engine_id, draining=True)

    async def undrain(self, engine_id: str) -> None:
        """The reverse. Raises KeyError when there is no such engine."""
        await self._set_draining(engine_id, draining=False)

    async def add(self, url: str) -> None:
        """Take a backend in; it gets work after its first good probe. One that was leaving stays."""
        backend = self._backends.get(_base(url))
        if backend is None:
            backend = self._join(url)
            self._start(backend)
        elif backend.leaving:
            backend.leaving = False
            await self._set_draining(backend.url, draining=False)

    async def remove(self, url: str) -> None:
        """Drain a backend, forget it when nothing is reserved there. Raises KeyError for an unknown URL."""
        backend = self._backends[_base(url)]
        backend.leaving = True
        await self._set_draining(backend.url, draining=True)
        await self._let_go(backend)

    async def discover_once(self) -> tuple[BackendReport, ...]:
        """Probe every backend once, all at the same time, and say what was found."""
        async with self._open(), asyncio.TaskGroup() as probes:
            for backend in self._backends.values():
                probes.create_task(backend.probe())
        return tuple(backend.report() for backend in self._backends.values())

    # The loops --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Probe until cancelled."""
        async with self._open(), asyncio.TaskGroup() as probing:
            self._probing = probing
            try:
                for backend in self._backends.values():
                    self._start(backend)
                await asyncio.Event().wait()
            finally:
                self._probing = None

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[None]:
        """When the last one that uses the pool's connections is done, nothing is left: no task, no socket."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0:
                with anyio.move_on_after(CLOSE_S_MAX, shield=True):
                    await self._close()

    async def _close(self) -> None:
        await self._later.clear()
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()

    def _start(self, backend: Backend) -> None:
        if self._probing is not None:
            self._probing.create_task(self._probe_for_ever(backend))

    async def _probe_for_ever(self, backend: Backend) -> None:
        while self._backends.get(backend.url) is backend:
            try:
                await backend.probe()
                await self._let_go(backend)
            except Exception:  # the loop of a backend must outlive whatever one round of it meets
                log.exception("probing %s failed", backend.url)
            interval_s = self._settings.probe_interval_s
            await asyncio.sleep(interval_s * random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311

    async def _let_go(self, backend: Backend) -> None:
        """Forget a leaving backend once its last reservation is over.

        A probe that was under way when it went may ask this again, when another one of that URL has joined.
        """
        if not backend.leaving or self._backends.get(backend.url) is not backend:
            return
        ids = {engine.id for engine in backend.engines}
        if any(use.reservations for use in self._ledger.view().engines if use.limits.engine_id in ids):
            return
        del self._backends[backend.url]
        await backend.leave()
        await self._compare()

    async def _compare(self) -> None:
        """Bar the backends that serve something else than the pool, and price on new shapes."""
        told = [b for b in self._backends.values() if b.cards is not None and not b.leaving]
        reasons = strangers({b.url: b.names for b in sorted(told, key=lambda b: b.turns)})
        for url, backend in self._backends.items():
            changed = [engine for engine in backend.engines if engine.barred != reasons.get(url)]
            for engine in changed:
                engine.barred = reasons.get(url)
            if changed:
                await backend.tell()
        known, self._shapes = self._shapes, self.shapes()
        if self._shapes - known and self.on_shapes is not None:
            await self.on_shapes()

    def _uses_now(self) -> Mapping[str, EngineUse]:
        """What the ledger holds on each engine."""
        now_s = self._clock.monotonic()
        if now_s - self._uses_s > VIEW_S_MAX:
            self._uses = {use.limits.engine_id: use for use in self._ledger.view().engines}
            self._uses_s = now_s
        return self._uses

    # The parts --------------------------------------------------------------------------------------------

    def _join(self, url: str) -> Backend:
        base = _base(url)
        backend = Backend(
            base,
            settings=self._settings,
            ledger=self._ledger,
            clock=self._clock,
            http=partial(self._client, base),
            later=self._later,
            uses=self._uses_now,
            learned=self._compare,
        )
        self._backends[base] = backend
        return backend

    def _client(self, name: str) -> httpx.AsyncClient:
        """The client for a backend's probes; the one named "" counts tokens."""
        if self._given is not None:
            return self._given
        client = self._clients.get(name)
        if client is None:
            transport = AiohttpTransport(PROBE_CONNECTIONS_MAX if name else CONCURRENT_MAX)
            client = self._clients[name] = httpx.AsyncClient(transport=transport, trust_env=False)
        return client

    def _fit(self) -> Iterable[Backend]:
        """The backends whose models are the pool's."""
        return (backend for backend in self._backends.values() if backend.engines[0].barred is None)

    def _engines(self) -> Iterable[Engine]:
        return (engine for backend in self._backends.values() for engine in backend.engines)

    def _find(self, engine_id: str) -> tuple[Backend, Engine] | None:
        backend = self._backends.get(engine_id.partition("#")[0])
        if backend is None:
            return None
        return next(((backend, engine) for engine in backend.engines if engine.id == engine_id), None)

    async def _set_draining(self, engine_id: str, *, draining: bool) -> None:
        backend = self._backends[engine_id.partition("#")[0]]
        engines = [engine for engine in backend.engines if engine_id in {engine.id, backend.url}]
        if not engines:
            raise KeyError(engine_id)
        for engine in engines:
            engine.draining = draining or backend.leaving
        await backend.tell()


def _bases(cards: Iterable[Card]) -> Iterable[Card]:
    return (card for card in cards if card.raw.get("parent") is None)


def _base(url: str) -> str:
    return url.rstrip("/")
