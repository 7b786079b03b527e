"""The sockets of a group of workers: bound by the parent before there is any of them.

Each worker has a listening socket of its own on the shared port (SO_REUSEPORT), and the kernel gives every new
connection to one of them by its addresses. Measured with four workers: a burst of 200 connections is shared 47,
63, 40, 50; on one socket that all accept from, 105, 67, 27, 1. Streams are long, so such a burst would decide
who works for minutes.

The parent keeps its end of every socket. A worker that dies loses the connections it had accepted, and no
others: those that wait in its backlog are accepted by its successor.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from kvgate.config import Settings
from kvgate.ports import BACKLOG, Listening, bind

ASKING_MAX = 64
"""Connections of the front that wait for a worker to accept."""


class Place:
    """What one worker listens on, whoever fills the place now."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name = name
        self._host = host
        self._port = port
        self._public: socket.socket | None = None
        self._private = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._private.bind("")  # the kernel chooses a name, which is in no file system
        self._private.listen(ASKING_MAX)
        self.open()

    @property
    def asked_at(self) -> str:
        """Where the front reaches the worker: the name of a unix socket."""
        return os.fsdecode(self._private.getsockname())

    @property
    def listening(self) -> Listening:
        """Raises RuntimeError while the place is vacant."""
        if self._public is None:
            raise RuntimeError(f"{self.name} has left the port")
        return Listening(self._public, self._private)

    def open(self) -> None:
        """Take part in the port. Idempotent; raises ConfigError."""
        if self._public is None:
            self._public = bind(self._host, self._port, "--port", shared=True)
            self._public.listen(BACKLOG)

    def vacate(self) -> None:
        """Leave the port to the others: what waits here is reset, and no more comes. Idempotent."""
        if self._public is not None:
            self._public.close()
            self._public = None

    def close(self) -> None:
        self.vacate()
        self._private.close()


@dataclass(frozen=True, slots=True)
class Places:
    workers: tuple[Place, ...]
    front: socket.socket
    """The admin port."""

    def keep(self, place: Place | None) -> None:
        """In a child: close what is not its own; None is the front's place."""
        for other in self.workers:
            if other is not place:
                other.close()
        if place is not None:
            self.front.close()


@contextmanager
def places(settings: Settings) -> Generator[Places]:
    """All sockets of the group. Raises ConfigError for a port that is taken."""
    with bind(settings.host, settings.port, "--port") as probe:
        # Bound without sharing, for sharing would let two kvgates take each other's clients unnoticed.
        port = int(probe.getsockname()[1])
    front = bind(settings.admin_host, settings.admin_port, "--admin-port")
    made: list[Place] = []
    try:
        made.extend(Place(f"worker {number + 1}", settings.host, port) for number in range(settings.workers))
        yield Places(tuple(made), front)
    finally:
        with suppress(OSError):
            front.close()
        for place in made:
            place.close()
