"""Processes that are started, awaited, and ended whatever happens: nothing is left behind.

They are ended by process id, the last one started first: SIGTERM and, when the time for all is over, SIGKILL. If this
process itself is killed, the kernel ends them (`PR_SET_PDEATHSIG`, Linux). They are in sessions of their own, so that
Ctrl-C reaches this process alone, and it ends them in order.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

READY_S_MAX = 60.0
"""A start takes a second or two; on a machine that is busy with other work it has taken ten times that."""
END_S_MAX = 15.0
"""From the first SIGTERM to SIGKILL: above the drain of two kvgates, one after the other."""
_POLL_S = 0.1
_LOG_TAIL_CHARS = 2000
_PR_SET_PDEATHSIG = 1
_prctl = getattr(ctypes.CDLL(None), "prctl", None)
"""Looked up here, because nothing may be loaded between fork and exec. Linux only."""


class ChildFailedError(Exception):
    """A child ended, or did not become ready; the message has the end of what it printed."""


@dataclass(frozen=True, slots=True)
class Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        """The end of its output."""
        return self.log.read_text(errors="replace")[-_LOG_TAIL_CHARS:].strip()

    def check(self) -> None:
        """Raises ChildFailedError when it has ended."""
        code = self.process.poll()
        if code is not None:
            raise ChildFailedError(f"{self.name} ended with exit code {code}:\n{self.said()}")


class Children:
    """A scope for child processes, whose output goes to files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    @property
    def all(self) -> tuple[Child, ...]:
        return tuple(self._children)

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> Child:
        """Start a process. Raises OSError when there is no such program."""
        path = self._folder / f"{name}.log"
        with path.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=dict(env),
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509  one system call
            )
        self._children.append(Child(name, process, path))
        return self._children[-1]

    def end(self) -> None:
        """End all of them.

        It blocks on purpose: a cancellation can't cut it short, and a second Ctrl-C only hastens it.
        """
        children, self._children = self._children[::-1], []
        deadline_s = time.monotonic() + END_S_MAX
        try:
            for child in children:
                child.process.terminate()
                child.process.wait(max(deadline_s - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            pass  # those before it are gone, it and the rest are killed
        finally:
            for child in children:
                child.process.kill()
                child.process.wait()


def _die_with(parent: int) -> Callable[[], None]:
    def before_exec() -> None:
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the kernel was told
            os._exit(1)

    return before_exec


async def ready(http: aiohttp.ClientSession, child: Child, url: str) -> None:
    """Wait until `url` answers 200. Raises ChildFailedError when the child ends before, or after a minute."""
    deadline_s = time.monotonic() + READY_S_MAX
    while not await _answers(http, url):
        child.check()
        if time.monotonic() > deadline_s:
            raise ChildFailedError(f"{child.name} is not ready after {READY_S_MAX:g} s:\n{child.said()}")
        await asyncio.sleep(_POLL_S)


async def _answers(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False
