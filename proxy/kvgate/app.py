"""Putting the house together, and running it: ledger, engines, admission, the two ports, signals.

Start: the ports open at once, so that probes can tell "starting" from "gone"; `/readyz` turns 200 with the first
engine that takes work. End: on SIGTERM or SIGINT `/readyz` says no, the queue is answered `draining`, streams run
on for up to `drain_s`, then the ports close. A second signal ends it at once. SIGHUP reads the policy file again.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager

import anyio
import anyio.abc
import uvicorn
import uvloop

from kvgate import __version__
from kvgate.admin import AdminState, admin_app
from kvgate.admission.line import Admission
from kvgate.admission.passing import Passing
from kvgate.admission.pricing import Pricer
from kvgate.api.dispatch import Gateway
from kvgate.clock import Clock, SystemClock
from kvgate.config import Settings
from kvgate.engines.pool import EnginePool
from kvgate.engines.transport import AiohttpTransport
from kvgate.errors import ConfigError
from kvgate.ledger.base import Refusal
from kvgate.ledger.memory import MemoryLedger
from kvgate.telemetry.logs import RequestLog
from kvgate.telemetry.metrics import Telemetry
from kvgate.tokens import counter_for

BACKLOG = 2048
"""Connections waiting to be accepted: the largest burst of new clients a worker takes without refusing."""
KEEP_ALIVE_S = 75
"""For idle client connections: above the 60 s after which common load balancers close theirs."""
SERVER_STOP_S = 5.0
"""For connections that are still open when the drain is over."""
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
        self.ledger = MemoryLedger(self.clock, bypass_max=settings.bypass_max)
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
        self.url = ""
        self.admin_url = ""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[App]:
        """Serve on both ports until the block ends; then stop at once (drain first, with `drain`).

        Raises ConfigError when a port cannot be bound.
        """
        settings = self.settings
        with (
            _bound(settings.host, settings.port, "--port") as public,
            _bound(settings.admin_host, settings.admin_port, "--admin-port") as private,
        ):
            self.url, self.admin_url = _url(public), _url(private)
            gateway, admin = _server(self.gateway), _server(admin_app(self._admin_state()))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.pool.run)
                serving = [
                    asyncio.create_task(s.serve([sock])) for s, sock in ((gateway, public), (admin, private))
                ]
                try:
                    await _started(gateway, admin)
                    yield self
                finally:
                    with anyio.CancelScope(shield=True):
                        gateway.should_exit = admin.should_exit = True
                        await asyncio.gather(*serving)
                        await self.upstream.aclose()
                        self._log.close()
                    tasks.cancel_scope.cancel()

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
            wanted = self._reload().backends
        except ConfigError as error:
            log.warning("settings not reloaded, the running ones stay: %s", error)
            return
        current = set(self.pool.backends())
        for url in [url for url in wanted if url not in current]:
            await self.pool.add(url)
        for url in current - set(wanted):
            await self.pool.remove(url)

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
        checks: dict[str, object] = {
            "policy": "ok",
            "ledger": "ok",
            "engine": "ok" if engine else "no engine is up and accepting work yet; see /admin/engines",
            "draining": "yes" if self.gateway.draining else "no",
        }
        return engine and not self.gateway.draining, checks


def run(settings: Settings, reload: Reload | None = None) -> int:
    """`kvgate serve`: run until a signal ends it; the exit code."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, reload))
    except ConfigError as error:
        sys.stderr.write(f"kvgate: {error}\n")
        return 2


async def _serve(settings: Settings, reload: Reload | None) -> int:
    app = App(settings, reload=reload)
    async with app.running():
        backends = ", ".join(settings.backends)
        log.info("kvgate %s on %s (admin %s) for %s", __version__, app.url, app.admin_url, backends)
        async with anyio.create_task_group() as tasks:
            stop = anyio.Event()
            tasks.start_soon(_signals, app, stop, tasks)
            await stop.wait()
            tasks.cancel_scope.cancel()
    return 0


async def _signals(app: App, stop: anyio.Event, tasks: anyio.abc.TaskGroup) -> None:
    draining = False

    async def drain_and_stop() -> None:
        await app.drain()
        stop.set()

    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
        async for number in received:
            if number == signal.SIGHUP:
                await app.reload()
            elif draining:
                stop.set()
            else:
                draining = True
                log.info("draining; a second signal stops at once")
                tasks.start_soon(drain_and_stop)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: it dies on SIGHUP and refuses connections at once on SIGTERM."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _server(app: object) -> _Server:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]  # an ASGI application by duck type
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # who the client is, is never taken from what anyone can write into a header
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(SERVER_STOP_S),
        backlog=BACKLOG,
    )
    return _Server(config)


async def _started(*servers: _Server) -> None:
    """uvicorn says that it has started in a flag only."""
    while not all(server.started for server in servers):  # noqa: ASYNC110
        await anyio.sleep(0.01)


@contextmanager
def _bound(host: str, port: int, option: str) -> Generator[socket.socket]:
    """A listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.set_inheritable(False)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}. Choose another with {option}."
        ) from error
    with sock:
        yield sock


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


__all__ = ["App", "run"]
