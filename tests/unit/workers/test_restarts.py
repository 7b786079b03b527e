"""When a worker that ended is started again, and what its successor knows."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.workers.child import CRASHED
from kvgate.workers.drained import BYTES, DrainedEngines
from kvgate.workers.restarts import DELAY_S_MAX, STEADY_S, Restarts


def test_after_a_good_life_the_next_starts_at_once() -> None:
    assert Restarts(early=7).after(STEADY_S).delay_s == 0


def test_early_ends_in_a_row_are_waited_for_longer_and_longer() -> None:
    restarts, delays = Restarts(), []
    for _ in range(10):
        restarts = restarts.after(0.5)
        delays.append(restarts.delay_s)
    assert delays[:4] == [0.1, 0.2, 0.4, 0.8]
    assert delays == sorted(delays)
    assert delays[-1] == DELAY_S_MAX


@given(st.lists(st.floats(0, 100)))
def test_the_delay_is_bounded_whatever_happens(lives_s: list[float]) -> None:
    restarts = Restarts()
    for lived_s in lives_s:
        restarts = restarts.after(lived_s)
        assert 0 <= restarts.delay_s <= DELAY_S_MAX
        assert (restarts.delay_s == 0) == (lived_s >= STEADY_S)


def alone(script: str) -> subprocess.CompletedProcess[str]:
    """Run it in a process that has one thread, as the parent of the workers has."""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)


def test_drained_engines_are_found_in_another_process() -> None:
    script = """
import os
from kvgate.workers.child import fork
from kvgate.workers.drained import DrainedEngines
drained = DrainedEngines()
pid = fork(lambda: drained.drain("http://a:1") or 0)
os.waitpid(pid, 0)
print(*drained.read())
"""
    assert alone(script).stdout == "http://a:1\n"


def test_draining_and_undraining() -> None:
    drained = DrainedEngines()
    assert drained.read() == frozenset()
    for engine_id in ("http://a:1#0", "http://a:1#1", "http://b:2"):
        drained.drain(engine_id)
    assert drained.read() == {"http://a:1#0", "http://a:1#1", "http://b:2"}
    drained.undrain("http://a:1")
    assert drained.read() == {"http://b:2"}
    drained.undrain("http://b:2")
    assert drained.read() == frozenset()


def test_half_a_note_is_none() -> None:
    drained = DrainedEngines()
    drained.drain("http://a:1")
    drained._memory[12] ^= 1
    assert drained.read() == frozenset()
    with pytest.raises(ValueError, match="more than"):
        drained.write(["x" * BYTES])


def test_a_child_ends_with_what_its_work_returns() -> None:
    script = """
import os
from kvgate.workers.child import fork
def crash(): raise LookupError("what happened")
for work in (lambda: 3, crash):
    print(os.waitstatus_to_exitcode(os.waitpid(fork(work), 0)[1]))
"""
    done = alone(script)
    assert done.stdout.split() == ["3", str(CRASHED)]
    assert "LookupError: what happened" in done.stderr


def test_a_child_gets_its_signals_though_the_parent_blocks_them() -> None:
    script = """
import os, signal
from kvgate.workers.child import fork
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
pid = fork(lambda: signal.pause() or 0)
os.kill(pid, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert alone(script).stdout.strip() == str(-signal.SIGTERM)
