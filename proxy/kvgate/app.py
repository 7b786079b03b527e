"""Putting the house together, and running it: pools, policy, the two ports, signals.

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
from kvgate.admin.state import JOINING
from kvgate.admission.line import Admission
from kvgate.api.dispatch import Gateway
from kvgate.api.files import raise_limit
from kvgate.assembly.desk import Desk
from kvgate.assembly.file import PolicySource
from kvgate.assembly.keeper import PolicyKeeper
from kvgate.assembly.pools import build
from kvgate.assembly.readiness import pool_states, readiness
from kvgate.clock import Clock, SystemClock
from kvgate.config import Settings
from kvgate.config.reserved import reservations
from kvgate.console import Console, LocalView, Rejections
from kvgate.engines.pool import EnginePool
from kvgate.engines.transport import AiohttpTransport
from kvgate.errors import ConfigError
from kvgate.ledger.base import Ledger, Refusal
from kvgate.ports import SERVER_STOP_S, Listening, Server, listening, started, url_of
from kvgate.telemetry.logs import RequestLog
from kvgate.telemetry.record import RequestRecord
from kvgate.telemetry.request_log import RequestFile
from kvgate.telemetry.traces import tracing

WARM_S_MAX = 5.0
"""How long a worker that joins others stays out of their port until it knows an engine: twice the longest probe."""
GC_THRESHOLDS = (10_000, 20, 20)
"""Python's own first one, 700, is reached by a few dozen requests at once: then they are all looked at again and
again. At ten thousand objects, about 1 MB, most of what was made for a request is gone already."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
log = logging.getLogger("kvgate")


class App:
    """One process of kvgate. `running()` is the whole life; tests use it in their own loop."""

    def __init__(
        self, settings: Settings, *, clock: Clock | None = None, source: PolicySource | None = None
    ) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.upstream = AiohttpTransport(settings.connections_max)
        self._log = RequestLog(self.clock)
        self._requests: RequestFile | None = None
        self._rejections = Rejections(self.clock)
        self._joining = False
        self.house = build(settings, self.clock, self.upstream)
        self.pools = self.house.pools
        self.policy = PolicyKeeper(settings, self.pools, self.clock, source)
        self.gateway = Gateway(
            pools=self.pools,
            live=self.policy.live,
            nowhere=self.house.nowhere,
            log=self._ended,
            clock=self.clock,
            settings=settings,
        )
        self._server: Server | None = None
        self.url = ""
        self.admin_url = ""

    # The first pool, for those who run only one.

    @property
    def ledger(self) -> Ledger:
        return self.pools.lines[0].ledger

    @property
    def pool(self) -> EnginePool:
        return self.pools.lines[0].engine_pool

    @property
    def admission(self) -> Admission:
        return self.pools.lines[0].admission

    @asynccontextmanager
    async def running(self, worker: Worker | None = None) -> AsyncGenerator[App]:
        """Serve until the block ends; then stop at once (drain first, with `drain`).

        Alone, on both ports of the settings. As a worker among others, on the sockets given; clients are
        accepted once an engine is known, at most `WARM_S_MAX` later.

        Raises ConfigError when a port cannot be bound, the shared ledger can't be one, or the request log can't
        be written.
        """
        async with AsyncExitStack() as stack:
            at = worker.given if worker else stack.enter_context(listening(self.settings))
            self.url, self.admin_url = url_of(at.public), url_of(at.private)
            for ledger in self.house.shared_ledgers:
                await stack.enter_async_context(ledger.running())
            for line in self.pools.lines:
                await stack.enter_async_context(line.forecaster.serving())
            self._requests = self._request_file(stack)
            spans = self.house.nowhere.trace_spans
            self.gateway.tracer = await stack.enter_async_context(tracing(self.settings, self.clock, spans))
            await self.policy.follow()
            console = self._console()
            self._server, admin = Server(self.gateway), Server(console)
            async with anyio.create_task_group() as tasks:
                for line in self.pools.lines:
                    tasks.start_soon(line.engine_pool.run)
                tasks.start_soon(self.policy.run)
                tasks.start_soon(self.policy.watch)
                serving = [asyncio.create_task(admin.serve([at.private]))]
                try:
                    if worker is not None:
                        await self._warm(worker.drained)
                    serving.append(asyncio.create_task(self._server.serve([at.public])))
                    await started(self._server, admin)
                    yield self
                finally:
                    with anyio.CancelScope(shield=True):
                        console.close()
                        self._server.should_exit = admin.should_exit = True
                        self.gateway.begin_draining()
                        self.gateway.break_off()
                        await asyncio.gather(*serving)
                        await self.upstream.aclose()
                        self._log.close()
                    tasks.cancel_scope.cancel()

    def _request_file(self, stack: AsyncExitStack) -> RequestFile | None:
        settings = self.settings
        if settings.request_log is None:
            return None
        file = RequestFile(
            settings.request_log,
            bytes_max=settings.request_log_bytes_max,
            files_max=settings.request_log_files_max,
        )
        stack.callback(file.close)
        return file

    def _ended(self, record: RequestRecord) -> None:
        self._log.ended(record)
        self._rejections.ended(record)
        if self._requests is not None and not self._requests.ended(record):
            self.house.telemetry_of(record.pool).request_log_dropped()

    async def _warm(self, drained: frozenset[str]) -> None:
        """While the others serve, a newcomer that knows no engine would only refuse."""
        self._joining = True
        with anyio.move_on_after(WARM_S_MAX):
            while not self._ready()[0]:  # noqa: ASYNC110  # two rooms decide that, and it is once in a life
                await anyio.sleep(0.02)
        for engine_id in drained:
            self.policy.drains.assume(engine_id)
        await self.policy.apply()
        self._joining = False

    def refuse_connections(self) -> None:
        """Leave the port to whoever comes next; connections that are open live on."""
        if self._server is not None:
            self._server.refuse()

    async def drain(self) -> None:
        """Refuse new work, answer the queue, and wait for what runs, at most `drain_s`."""
        self.gateway.begin_draining()
        for line in self.pools.lines:
            await line.ledger.close(Refusal.DRAINING)
        with anyio.move_on_after(self.settings.timeouts.drain_s):
            await self.gateway.idle()

    async def reload(self) -> None:
        """Read the policy again; a bad file changes nothing."""
        await self.policy.reload()

    def _console(self) -> Console:
        """The admin port, with the console in front."""
        state, token = self._admin_state(), self.settings.admin_token
        return Console(admin_app(state), LocalView(state, self._rejections), token, self.clock)

    def _admin_state(self) -> AdminState:
        return AdminState(
            settings=self.settings,
            telemetry=self.house.telemetry,
            pools=lambda: pool_states(self.pools.lines),
            ready=self._ready,
            drain=lambda pool, engine_id: self.policy.drains.tell(pool, engine_id, drained=True),
            undrain=lambda pool, engine_id: self.policy.drains.tell(pool, engine_id, drained=False),
            tenants=Desk(self.policy, self.pools.names),
            policy_file=lambda: self.policy.file,
        )

    def _ready(self) -> tuple[bool, dict[str, object]]:
        ready, parts = readiness(self.pools.lines, self.policy.file, draining=self.gateway.draining)
        return ready, {**parts, JOINING: "yes"} if self._joining else parts


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


def run(settings: Settings, source: PolicySource | None = None, worker: Worker | None = None) -> int:
    """`kvgate serve`: run until a signal ends it; the exit code."""
    raise_limit()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, source, worker))
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


async def _serve(settings: Settings, source: PolicySource | None, worker: Worker | None) -> int:
    app = App(settings, source=source)
    with _taking_signals() as received:
        async with app.running(worker):
            calm_garbage_collector()
            log.info(
                "kvgate %s on %s%s for %s; reservation: %s",
                __version__,
                app.url,
                "" if worker else f" (admin {app.admin_url})",
                _served(settings),
                reservations(settings),
            )
            async with anyio.create_task_group() as tasks:
                stop = anyio.Event()
                tasks.start_soon(_signals, app, received, stop, tasks, worker)
                await stop.wait()
                tasks.cancel_scope.cancel()
    return 0


def _served(settings: Settings) -> str:
    """The backends, by pool where there are several."""
    specs = settings.pool_specs()
    if len(specs) == 1:
        return ", ".join(specs[0].backends)
    return "; ".join(f"{spec.name}: {', '.join(spec.backends)}" for spec in specs)


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
            tasks.start_soon(app.reload)
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
