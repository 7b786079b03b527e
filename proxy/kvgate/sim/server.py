"""The simulator as a server: in a test (`async with SimServer(...)`) or as a process (`run`).

It runs uvicorn's HTTP protocol on a listener of its own, because it must do what a server normally avoids:
refuse connections for a while, break one with a reset, and end its streams as vLLM does on SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from kvgate.sim.app import SimApp
from kvgate.sim.engine import SimEngine
from kvgate.sim.exchange import TRANSPORT
from kvgate.sim.generation import ServedModel
from kvgate.sim.profiles import find_profile
from kvgate_policies.engine_model import EngineModel, SchedulingPolicy, StepProfile, StepResult

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable
    from types import TracebackType

STOP_S_MAX = 5.0
"""For answers to be finished when the server stops; then connections are closed. Ending takes milliseconds
unless a client does not read."""
BACKLOG = 2048
ACCEPT_TURNS = 4
"""Turns of the loop from accepting a socket to its connection being known, and one for the closed to be told."""
SERVER_HEADER = ("server", "kvgate-sim")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """Names and defaults follow vLLM where it has them; the sizes are those of a small test."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: a free one."""
    blocks: int = 121
    """`num_gpu_blocks`, the null block included."""
    block_size: int = 32
    max_model_len: int = 2048
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    profile: str | StepProfile = "fast"
    model: str = "sim"
    prefix_caching: bool = True
    watermark: float = 0.0
    max_num_queued_reqs: int | None = None
    policy: str = "fcfs"
    seed: int = 0
    """Other seeds give other output lengths."""

    def make_model(self) -> EngineModel:
        """Raises `ValueError` for sizes no vLLM would start with, `ConfigError` for an unknown profile."""
        return EngineModel(
            num_gpu_blocks=self.blocks,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            prefix_caching=self.prefix_caching,
            watermark=self.watermark,
            max_num_queued_reqs=self.max_num_queued_reqs,
            policy=SchedulingPolicy(self.policy),
            profile=find_profile(self.profile),
        )


class SimOptions(TypedDict, total=False):
    """`SimSettings` as keyword arguments."""

    host: str
    port: int
    blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    profile: str | StepProfile
    model: str
    prefix_caching: bool
    watermark: float
    max_num_queued_reqs: int | None
    policy: str
    seed: int


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, which also tells the application its transport, and is none once the server stopped."""

    is_stopped: Callable[[], bool]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        if self.is_stopped():  # accepted just before the listener was closed
            transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        extensions: dict[str, Any] = {TRANSPORT: self.transport}
        self.scope["extensions"] = extensions


class SimServer:
    """One simulated engine behind one port."""

    def __init__(self, **options: Unpack[SimOptions]) -> None:
        """Options as in `SimSettings`. Raises `ValueError` and `ConfigError` as `SimSettings.make_model`."""
        self.settings = SimSettings(**options)
        self.engine = SimEngine(self.settings.make_model)
        served = ServedModel(self.settings.model, self.settings.max_model_len, self.settings.seed)
        self.app = SimApp(self.engine, served, self.refuse)
        self.port = self.settings.port
        self._state = ServerState()
        self._stopped = False
        self._config = self._uvicorn_config()
        self._listener: asyncio.Server | None = None
        self._steps: asyncio.Task[None] | None = None
        self._reopening: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None

    def _uvicorn_config(self) -> uvicorn.Config:
        return uvicorn.Config(
            self.app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            headers=[SERVER_HEADER],
        )

    @property
    def url(self) -> str:
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"http://{host}:{self.port}"

    @property
    def model(self) -> EngineModel:
        """The engine model now; a restart makes a new one."""
        return self.engine.model

    @property
    def log(self) -> deque[StepResult]:
        """Every step so far, the oldest first, restarts included."""
        return self.engine.log

    # Life

    async def start(self) -> None:
        """Raises `OSError` when the port is taken."""
        self._config.load()
        self._state.default_headers = self._config.encoded_headers
        await self._open()
        self._steps = asyncio.create_task(self.engine.run(), name="sim-engine steps")

    async def stop(self) -> None:
        """End as vLLM on SIGTERM: streams get finish_reason `abort` and [DONE]; then all is closed."""
        self._cancel_reopening()
        if self._opening is not None:
            await asyncio.wait([self._opening])
        self._close_listener()
        self._stopped = True
        self.engine.stop()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=STOP_S_MAX)
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=STOP_S_MAX)
        await self._stop_steps()
        for _ in range(ACCEPT_TURNS):  # what was just being accepted appears only now
            await asyncio.sleep(0)
            for connection in list(self._state.connections):
                connection.transport.abort()

    async def _stop_steps(self) -> None:
        if self._steps is not None:
            self._steps.cancel()
            await asyncio.wait([self._steps])
            self._steps = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # The listener

    async def _open(self) -> None:
        listener = socket.socket(socket.AF_INET6 if ":" in self.settings.host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        try:
            listener.bind((self.settings.host, self.port))
        except OSError:
            listener.close()
            raise
        self.port = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._make_protocol, sock=listener, backlog=BACKLOG)

    def _make_protocol(self) -> asyncio.Protocol:
        protocol = _Protocol(config=self._config, server_state=self._state, app_state={})
        protocol.is_stopped = lambda: self._stopped
        return protocol

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def refuse(self, seconds: float) -> None:
        """Refuse new connections for so long; those that are open stay."""
        self._close_listener()
        self._cancel_reopening()
        self._reopening = asyncio.get_running_loop().call_later(seconds, self._reopen)

    def _reopen(self) -> None:
        self._reopening = None
        self._opening = asyncio.create_task(self._open())

    def _cancel_reopening(self) -> None:
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None

    # Making things go wrong, from a test in the same process

    def add_fault(self, fault: str, count: int = 1) -> None:
        """As `POST /sim/faults`. Raises `ValueError` for a fault there is not."""
        self.app.add_fault(fault, count)

    def clear_faults(self) -> None:
        self.app.clear_faults()

    def restart(self, *, down_s: float = 0.0) -> None:
        """Break every request, lose the cache and the counters, and refuse connections for `down_s`."""
        self.engine.restart()
        if down_s:
            self.refuse(down_s)


async def serve(**options: Unpack[SimOptions]) -> None:
    """Serve until SIGTERM or SIGINT. Options and errors as `SimServer` and `SimServer.start`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with SimServer(**options) as server:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        settings = server.settings
        sys.stdout.write(
            f"kvgate sim-engine: {server.url} (a simulator) serves {settings.model!r}, "
            f"{settings.blocks} blocks of {settings.block_size} tokens, profile {server.model.profile.name}\n"
        )
        sys.stdout.flush()
        await stop.wait()


def run(**options: Unpack[SimOptions]) -> None:
    """Serve until SIGTERM or Ctrl-C, then return. Options and errors as `serve`."""
    import uvloop  # noqa: PLC0415 -- only where a process of its own is run

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(**options))
