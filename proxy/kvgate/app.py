"""Putting the house together, and running it: ledger, engines, admission, the two ports, signals.

Start: the ports open at once, so that probes can tell "starting" from "gone"; `/readyz` turns 200 with the first
engine that takes work. End: on SIGTERM or SIGINT `/readyz` says no, the queue is answered `draining`, streams run
on for up to `drain_s`, then the ports close. A second signal ends it at once. SIGHUP reads the policy file again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

import anyio
import anyio.abc
import uvloop

from kvgate import __version__
from kvgate.admin import AdminState, admin_app
from kvgate.admission.line import Admission
from kvgate.admission.passing import Passing
from kvgate.admission.pricing import Pricer
from kvgate.api.dispatch import Gateway
from kvgate.api.files import raise_limit
from kvgate.clock import Clock, SystemClock
from kvgate.config import Settings
from kvgate.engines.pool import EnginePool
from kvgate.engines.transport import AiohttpTransport
from kvgate.errors import ConfigError
from kvgate.ledger.base import Refusal
from kvgate.ledger.memory import MemoryLedger
from kvgate.ledger.redis import RedisLedger
from kvgate.ports import SERVER_STOP_S, Listening, Server, listening, started, url_of
from kvgate.telemetry.logs import RequestLog
from kvgate.telemetry.metrics import Telemetry
from kvgate.tokens import counter_for

WARM_S_MAX = 5.0
"""How long a worker that joins others stays out of their port until it knows an engine: twice the longest probe."""
GC_THRESHOLDS = (10_000, 20, 20)
"""Python's own first one, 700, is reached by a few dozen requests at once: then they are all looked at again and
again. At ten thousand objects, about 1 MB, most of what was made for a request is gone already."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
log = logging.getLogger("kvgate")

Reload = Callable[[], Settings]


class App:
    """One process of kvgate. `running()` is the whole life; tests use it in their own loop."""

    def __init__(
        self, settings: Settings, *, clock: Clock | None = None, reload: Reload | None = None
    ) -> None:
        self.settings = settings
        self._reload = reload
        self.clock = clock or SystemClock()
        self.telemetry = Telemetry(settings.pool)
        self._log = RequestLog(self.clock)
        self.ledger = _ledger(settings, self.clock, self.telemetry)
        self.pool = EnginePool(settings, self.ledger, self.clock)
        self.upstream = AiohttpTransport(settings.connections_max)
        self.admission = Admission(
            engines=self.pool,
            ledger=self.ledger,
            pricer=Pricer(counter_for(settings.prompt_tokens, self.pool.tokenize), self.pool),
            upstream=self.upstream,
            telemetry=self.telemetry,
            clock=self.clock,
            settings=settings,
        )
        self.pool.on_shapes = self.admission.shapes_changed
        if isinstance(self.ledger, RedisLedger):
            self.pool.on_gauges = self.ledger.settle
        self.gateway = Gateway(
            admission=self.admission,
            passing=Passing(self.pool, self.upstream, settings),
            models=self.pool,
            telemetry=self.telemetry,
            log=self._log.ended,
            clock=self.clock,
            settings=settings,
        )
        self.telemetry.watch(self.ledger.view, self.pool.snapshot)
        self._server: Server | None = None
        self.url = ""
        self.admin_url = ""

    @asynccontextmanager
    async def running(self, worker: Worker | None = None) -> AsyncGenerator[App]:
        """Serve until the block ends; then stop at once (drain first, with `drain`).

        Alone, on both ports of the settings. As a worker among others, on the sockets given; clients are
        accepted once an engine is known, at most `WARM_S_MAX` later.

        Raises ConfigError when a port cannot be bound, or the shared ledger can't be one.
        """
        async with AsyncExitStack() as stack:
            at = worker.given if worker else stack.enter_context(listening(self.settings))
            self.url, self.admin_url = url_of(at.public), url_of(at.private)
            if isinstance(self.ledger, RedisLedger):
                await stack.enter_async_context(self.ledger.running())
            self._server, admin = Server(self.gateway), Server(admin_app(self._admin_state()))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.pool.run)
                serving = [asyncio.create_task(admin.serve([at.private]))]
                try:
                    if worker is not None:
                        await self._warm(worker.drained)
                    serving.append(asyncio.create_task(self._server.serve([at.public])))
                    await started(self._server, admin)
                    yield self
                finally:
                    with anyio.CancelScope(shield=True):
                        self._server.should_exit = admin.should_exit = True
                        self.gateway.draining = True
                        self.gateway.break_off()
                        await asyncio.gather(*serving)
                        await self.upstream.aclose()
                        self._log.close()
                    tasks.cancel_scope.cancel()

    async def _warm(self, drained: frozenset[str]) -> None:
        """While the others serve, a newcomer that knows no engine would only refuse."""
        with anyio.move_on_after(WARM_S_MAX):
            while not self._ready()[0]:  # noqa: ASYNC110  # two rooms decide that, and it is once in a life
                await anyio.sleep(0.02)
        for engine_id in drained & {status.id for status in self.pool.snapshot()}:
            await self.pool.drain(engine_id)

    def refuse_connections(self) -> None:
        """Leave the port to whoever comes next; connections that are open live on."""
        if self._server is not None:
            self._server.refuse()

    async def drain(self) -> None:
        """Refuse new work, answer the queue, and wait for what runs, at most `drain_s`."""
        self.gateway.draining = True
        await self.ledger.close(Refusal.DRAINING)
        with anyio.move_on_after(self.settings.timeouts.drain_s):
            await self.gateway.idle()

    async def reload(self) -> None:
        """Read the settings again and take over the list of backends; a bad file changes nothing."""
        if self._reload is None:
            return
        try:
            wanted = self._reload()
        except ConfigError as error:
            log.warning("settings not reloaded, the running ones stay: %s", error)
            return
        except Exception:  # whatever a file can do to its reader, what runs must outlive it
            log.exception("settings not reloaded, the running ones stay")
            return
        current = set(self.pool.backends())
        added = [url for url in wanted.backends if url not in current]
        removed = sorted(current - set(wanted.backends))
        for url in added:
            await self.pool.add(url)
        for url in removed:
            await self.pool.remove(url)
        self._log_reload(wanted, added, removed)

    def _log_reload(self, wanted: Settings, added: list[str], removed: list[str]) -> None:
        changes = [f"{word} {url}" for word, urls in (("added", added), ("removed", removed)) for url in urls]
        log.info("settings reloaded; backends: %s", ", ".join(changes) or "as before")
        differs = [name for name in type(wanted).model_fields if _differs(name, self.settings, wanted)]
        if differs:
            log.warning("changed, and taken over only by a restart: %s", ", ".join(sorted(differs)))

    def _admin_state(self) -> AdminState:
        return AdminState(
            ledger_view=self.ledger.view,
            engine_statuses=self.pool.snapshot,
            ready=self._ready,
            drain=self.pool.drain,
            undrain=self.pool.undrain,
            settings=self.settings,
            telemetry=self.telemetry,
        )

    def _ready(self) -> tuple[bool, dict[str, object]]:
        engine = bool(self.pool.available())
        mode = self.ledger.view().mode
        usable = mode != "closed"
        checks: dict[str, object] = {
            "policy": "ok",
            "ledger": "ok" if mode in {"memory", "redis"} else f"the shared ledger is away; mode {mode}",
            "engine": "ok" if engine else "no engine is up and accepting work yet; see /admin/engines",
            "draining": "yes" if self.gateway.draining else "no",
        }
        return engine and usable and not self.gateway.draining, checks


def _differs(name: str, running: Settings, wanted: Settings) -> bool:
    return name != "backends" and getattr(running, name) != getattr(wanted, name)


def _ledger(settings: Settings, clock: Clock, telemetry: Telemetry) -> MemoryLedger | RedisLedger:
    """Raises ConfigError for a URL that can't be used."""
    if not settings.ledger_shared:
        return MemoryLedger(clock, bypass_max=settings.bypass_max)
    return RedisLedger(
        settings.ledger_url,
        pool=settings.pool,
        clock=clock,
        on_failure=settings.ledger_on_failure,
        lease_s=settings.ledger_lease_s,
        heartbeat_s=settings.ledger_heartbeat_s,
        orphan_hold_s=settings.ledger_orphan_hold_s,
        bypass_max=settings.bypass_max,
        watch=telemetry.ledger,
    )


@dataclass(frozen=True, slots=True)
class Worker:
    """What is different for one of several processes on a port, whose parent passes the signals on.

    SIGTERM may come more than once (from the parent, and from whoever ends all processes of a service), so it
    always means a drain, and SIGINT an end at once.
    """

    given: Listening
    is_orphan: Callable[[], bool]
    """The parent has died: the port is left at the beginning of the drain, for the successor of all."""
    drained: frozenset[str] = frozenset()
    """Engines that an operator had drained before this process was started."""


def run(settings: Settings, reload: Reload | None = None, worker: Worker | None = None) -> int:
    """`kvgate serve`: run until a signal ends it; the exit code."""
    raise_limit()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, reload, worker))
    except ConfigError as error:
        sys.stderr.write(f"kvgate: {error}\n")
        return 2


def calm_garbage_collector() -> None:
    """Once everything is up: what is there now stays, so it is not searched for garbage any more (5 to 10 % of the
    processor time of a request). For the whole process, hence for `run` only.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def _serve(settings: Settings, reload: Reload | None, worker: Worker | None) -> int:
    app = App(settings, reload=reload)
    with _taking_signals() as received:
        async with app.running(worker):
            calm_garbage_collector()
            log.info(
                "kvgate %s on %s%s for %s",
                __version__,
                app.url,
                "" if worker else f" (admin {app.admin_url})",
                ", ".join(settings.backends),
            )
            async with anyio.create_task_group() as tasks:
                stop = anyio.Event()
                tasks.start_soon(_signals, app, received, stop, tasks, worker)
                await stop.wait()
                tasks.cancel_scope.cancel()
    return 0


@contextmanager
def _taking_signals() -> Generator[AsyncIterator[signal.Signals]]:
    """SIGHUP, which has been held back since the process began, is let in. At the end all are held back: a signal
    that comes when everything is done must not turn a good exit code into a bad one.
    """
    with anyio.open_signal_receiver(*SIGNALS) as received:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            yield received
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


async def _signals(
    app: App,
    received: AsyncIterator[signal.Signals],
    stop: anyio.Event,
    tasks: anyio.abc.TaskGroup,
    worker: Worker | None,
) -> None:
    draining = False

    async def drain_and_stop() -> None:
        await app.drain()
        stop.set()

    async for number in received:
        if number == signal.SIGHUP:
            await app.reload()
        elif draining:
            if worker is None or number == signal.SIGINT:
                stop.set()
        else:
            draining = True
            log.info("draining" if worker else "draining; a second signal stops at once")
            if worker is not None and worker.is_orphan():
                app.refuse_connections()
            tasks.start_soon(drain_and_stop)


__all__ = ["SERVER_STOP_S", "App", "Worker", "calm_garbage_collector", "run"]
