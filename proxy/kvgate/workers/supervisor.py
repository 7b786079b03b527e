"""The parent: starts the workers and the front, replaces those that end, and passes signals on.

One thread, no event loop, no await: it sleeps in `sigtimedwait` until a signal comes or a start is due. Signals
are blocked and taken from there, so none can arrive between two lines.

Exit codes: 0 all ended by themselves after a drain · 1 one had to be killed · 2 the settings can't be served.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvgate import __version__
from kvgate.assembly.file import PolicySource
from kvgate.config import Settings
from kvgate.errors import ConfigError
from kvgate.ports import SERVER_STOP_S, url_of
from kvgate.workers.child import fork
from kvgate.workers.crew import as_by_now, do_front, do_worker
from kvgate.workers.drained import DrainedEngines
from kvgate.workers.places import Place, Places, places
from kvgate.workers.restarts import STEADY_S, Restarts

EXIT_SETTINGS = 2
"""Of a child: what it was given can't be served, and trying again won't help."""
VACATE_S = 1.0
"""A place that stays empty for longer leaves the port: clients are not kept waiting for its successor."""
KILL_AFTER_S = 5.0
"""Beyond the longest drain; then a child that is still there is stuck."""
TAKEN = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD})

LOOK_S = 2.0
"""Between two looks at whether the policy file changed: a worker that is started later begins with the last good
one, which may be gone by then."""

log = logging.getLogger("kvgate.workers")


@dataclass(slots=True)
class Child:
    """A place in the group, and who fills it now."""

    name: str
    place: Place | None = None
    """None for the front."""
    pid: int | None = None
    started_s: float = 0.0
    due_s: float | None = 0.0
    """When it is to be started; None while it runs, and when it need not run any more."""
    restarts: Restarts = field(default_factory=Restarts)
    was_steady: bool = False


def run(settings: Settings, source: PolicySource | None = None) -> int:
    """Serve with `settings.workers` processes until a signal ends it; the exit code."""
    if sys.platform != "linux":
        sys.stderr.write("kvgate: --workers above 1 is for Linux; run one process, or several replicas\n")
        return EXIT_SETTINGS
    signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)
    try:
        with places(settings) as sockets:
            return Supervisor(settings, sockets, source).run()
    except ConfigError as error:
        sys.stderr.write(f"kvgate: {error}\n")
        return EXIT_SETTINGS
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TAKEN)


class Supervisor:
    def __init__(self, settings: Settings, sockets: Places, source: PolicySource | None) -> None:
        self._settings = settings
        self._sockets = sockets
        self._source = source
        self._stamp = None if source is None else source.first
        self._drained = DrainedEngines()
        self._workers = [Child(place.name, place) for place in sockets.workers]
        self._front = Child("front")
        self._stopping = False
        self._kill_at_s: float | None = None
        self._code = 0

    def run(self) -> int:
        public = url_of(self._sockets.workers[0].listening.public)
        admin = url_of(self._sockets.front)
        count = len(self._workers)
        log.info("kvgate %s on %s (admin %s) with %d workers", __version__, public, admin, count)
        try:
            while not self._over():
                self._start_due()
                self._kill_overdue()
                self._look_at_policy()
                taken = signal.sigtimedwait(TAKEN, self._wait_s())
                if taken is not None:
                    self._take(taken.si_signo)
        finally:
            self._end_front()
        return self._code

    def _over(self) -> bool:
        return self._stopping and not any(child.pid for child in self._workers)

    # Starting ---------------------------------------------------------------------------------------------

    def _start_due(self) -> None:
        for child in (*self._workers, self._front):
            if child.due_s is not None and child.due_s <= time.monotonic():
                if child.place is not None:
                    child.place.open()
                child.pid, child.started_s, child.due_s = fork(self._work(child)), time.monotonic(), None

    def _work(self, child: Child) -> Callable[[], int]:
        if child.place is None:
            return do_front(self._settings, self._sockets, self._drained)
        return do_worker(self._settings, self._source, self._sockets, child.place, self._drained)

    def _wait_s(self) -> float:
        """Until something is due, or the policy file is to be looked at; an hour when nothing is, for `sigtimedwait`
        has no "for ever".
        """
        due = [c.due_s for c in (*self._workers, self._front) if c.due_s is not None]
        if self._kill_at_s is not None:
            due.append(self._kill_at_s)
        if self._source is not None and self._source.path is not None:
            due.append(time.monotonic() + LOOK_S)
        return max(min(due, default=time.monotonic() + 3600.0) - time.monotonic(), 0.0)

    # Signals ----------------------------------------------------------------------------------------------

    def _take(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number == signal.SIGHUP:
            self._read_again()
            self._pass_on(signal.SIGHUP)
        elif self._stopping:
            self._pass_on(signal.SIGINT)  # at once
        else:
            log.info("draining; a second signal stops at once")
            self._stop()

    def _look_at_policy(self) -> None:
        if self._source is not None and self._source.stamp() != self._stamp:
            self._read_again()

    def _read_again(self) -> None:
        """As each worker does by itself: one that is started later begins with what the others have by now."""
        if self._source is not None:
            self._stamp = self._source.stamp()
            self._settings = as_by_now(self._settings, self._source)

    def _stop(self) -> None:
        """Let the workers drain; the port is theirs alone now, and closes with the last of them."""
        self._stopping = True
        self._kill_at_s = time.monotonic() + self._settings.timeouts.drain_s + SERVER_STOP_S + KILL_AFTER_S
        for child in self._workers:
            child.due_s = None
            if child.place is not None:
                child.place.vacate()
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        for child in self._workers:
            if child.pid:
                os.kill(child.pid, number)

    def _kill_overdue(self) -> None:
        if self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
            self._kill_at_s = None
            self._code = 1
            log.error("killing workers that did not end %g s after their longest drain", KILL_AFTER_S)
            self._pass_on(signal.SIGKILL)

    # Ends -------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """One SIGCHLD may stand for several children, and for some that are not ours (as process 1)."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            child = next((c for c in (*self._workers, self._front) if c.pid == pid), None)
            if child is not None:
                child.pid = None
                self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: Child, code: int) -> None:
        lived_s = time.monotonic() - child.started_s
        if self._stopping:
            if code and child is not self._front:
                log.warning("%s ended while draining: %s", child.name, _how(code))
            return
        if code == EXIT_SETTINGS and not child.was_steady and not child.restarts.early:
            self._code = EXIT_SETTINGS
            self._stop()
            return
        child.was_steady = child.was_steady or lived_s >= STEADY_S
        child.restarts = child.restarts.after(lived_s)
        child.due_s = time.monotonic() + child.restarts.delay_s
        if child.place is not None and child.restarts.delay_s > VACATE_S:
            child.place.vacate()
        log.error(
            "%s ended after %.1f s: %s; started again in %.1f s",
            *(child.name, lived_s, _how(code), child.restarts.delay_s),
        )

    def _end_front(self) -> None:
        """Last, so that a probe sees the drain to its end."""
        if self._front.pid:
            os.kill(self._front.pid, signal.SIGKILL)  # it holds nothing
            os.waitpid(self._front.pid, 0)


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
