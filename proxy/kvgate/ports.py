"""Listening sockets, and the HTTP server behind each.

The sockets are bound before anything else is started, so that a port that is taken is said at once and in one
line. The server is uvicorn without its signal handlers, which die on SIGHUP and refuse connections at once on
SIGTERM: when to stop is the process's decision.
"""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio
import uvicorn

from kvgate.api.files import client_connections_max
from kvgate.api.wire import bounded
from kvgate.config import Settings
from kvgate.errors import ConfigError

BACKLOG = 2048
"""Connections waiting to be accepted: the largest burst of new clients a worker takes without refusing."""
KEEP_ALIVE_S = 75
"""For idle client connections: above the 60 s after which common load balancers close theirs."""
SERVER_STOP_S = 5.0
"""For connections that are still open when the drain is over."""


class Server(uvicorn.Server):
    """One ASGI application on one socket; `should_exit` ends it."""

    def __init__(self, app: object) -> None:
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]  # an ASGI application by duck type
                http=bounded(client_connections_max()),
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
        )

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    def refuse(self) -> None:
        """Accept no more connections; those that are open live on."""
        for server in self.servers:
            server.close()


async def started(*servers: Server) -> None:
    """Wait for that; uvicorn says so in a flag only."""
    while not all(server.started for server in servers):  # noqa: ASYNC110
        await anyio.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Listening:
    """The two sockets of a process: for clients, and for operators."""

    public: socket.socket
    private: socket.socket


@contextmanager
def listening(settings: Settings) -> Generator[Listening]:
    """Both, bound as the settings say and closed in the end. Raises ConfigError."""
    with (
        bind(settings.host, settings.port, "--port") as public,
        bind(settings.admin_host, settings.admin_port, "--admin-port") as private,
    ):
        yield Listening(public, private)


def bind(host: str, port: int, option: str, *, shared: bool = False) -> socket.socket:
    """A bound socket; port 0 takes a free one. `shared` lets further sockets of this user share the port.

    Raises ConfigError that names `option`.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}. Choose another with {option}."
        ) from error
    return sock


def url_of(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return "unix:"
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
