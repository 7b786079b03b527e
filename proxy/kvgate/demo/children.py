"""The processes of the demo: started, awaited, and ended whatever happens.

Nothing is left behind. On the way out every child gets SIGTERM, and SIGKILL when it is still there a moment
later. If the demo itself is killed, the kernel kills its children (`PR_SET_PDEATHSIG`, Linux). Children are
in sessions of their own, so that Ctrl-C reaches the demo alone, and it ends them in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Self

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_READY_S_MAX = 60.0
"""A start takes a second or two; on a machine that is busy with other work it has taken ten times that."""
_POLL_S = 0.05
_END_S_MAX = 3.0
"""From SIGTERM to SIGKILL, all children together: nothing they hold is worth more of the user's time."""
_LOG_TAIL_BYTES = 2000
_PORTS = (12_000, 32_000)
_PR_SET_PDEATHSIG = 1
_prctl = getattr(ctypes.CDLL(None), "prctl", None)
"""Looked up here, because nothing may be imported or loaded between fork and exec. Linux only."""


class ChildFailedError(Exception):
    """A child ended or did not become ready; the message has the end of what it printed."""


@dataclass(frozen=True, slots=True)
class Child:
    name: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    """What it prints, in a file without a name: a pipe that nobody reads would stop it when full."""

    def said(self) -> str:
        """The end of its output."""
        self.output.seek(0, os.SEEK_END)
        self.output.seek(max(self.output.tell() - _LOG_TAIL_BYTES, 0))
        return self.output.read().decode(errors="replace").strip()


class Children:
    """A scope for child processes."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def start(self, name: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Child:
        """Start `python -m kvgate` with these arguments, and these variables beside those of this process."""
        output = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the child
        process = subprocess.Popen(  # noqa: S603  our own command
            [sys.executable, "-m", "kvgate", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment() | dict(environment or {}),
            start_new_session=True,
            preexec_fn=_die_with_parent(os.getpid()),  # noqa: PLW1509  one system call; no thread runs yet
        )
        child = Child(name, process, output)
        self._children.append(child)
        return child

    def end(self) -> None:
        """End all children.

        It blocks on purpose: a cancellation cannot cut it short, and a second Ctrl-C only hastens it.
        """
        children, self._children = self._children, []
        try:
            for child in children:
                child.process.terminate()
            _wait(children, time.monotonic() + _END_S_MAX)
        finally:
            for child in children:
                child.process.kill()
                child.process.wait()
                child.output.close()


def _wait(children: list[Child], deadline_s: float) -> None:
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(max(deadline_s - time.monotonic(), 0))


def _environment() -> dict[str, str]:
    """Ours without the settings of kvgate: the demo is the same whatever a real deployment has set."""
    return {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}


def _die_with_parent(parent: int) -> Callable[[], None]:
    def before_exec() -> None:
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the kernel was told
            os._exit(1)

    return before_exec


def free_ports(count: int) -> list[int]:
    """Ports on 127.0.0.1 that are free now, all different because all are held until the last is found.

    They are below those that systems give to outgoing connections: between now and their use, none of the many
    that the demo opens gets one of them.
    """
    dice = random.SystemRandom()
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            sock, port = held.enter_context(socket.socket()), dice.randrange(*_PORTS)
            with contextlib.suppress(OSError):
                sock.bind(("127.0.0.1", port))
                found.append(port)
    return found


async def ready(
    http: aiohttp.ClientSession, child: Child, url: str, accept: Callable[[Any], bool] | None = None
) -> None:
    """Wait until `url` answers 200 and, if given, `accept` takes its JSON.

    Raises ChildFailedError when the child ends before, or after a minute.
    """
    deadline_s = time.monotonic() + _READY_S_MAX
    while not await _answers(http, url, accept):
        if child.process.poll() is not None:
            code = child.process.returncode
            msg = f"{child.name} ended with exit code {code} at its start:\n{child.said()}"
            raise ChildFailedError(msg)
        if time.monotonic() > deadline_s:
            msg = f"{child.name} is not ready after {_READY_S_MAX:g} s ({url}):\n{child.said()}"
            raise ChildFailedError(msg)
        await asyncio.sleep(_POLL_S)


async def _answers(http: aiohttp.ClientSession, url: str, accept: Callable[[Any], bool] | None) -> bool:
    try:
        async with http.get(url) as response:
            return response.status == 200 and (accept is None or accept(await response.json()))
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return False
