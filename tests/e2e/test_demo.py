"""The demo as users start it: what it shows, how it ends, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

COMMAND = [sys.executable, "-m", "kvgate", "demo"]
WAIT_S_MAX = 90.0


def _until(true: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not true():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


@contextmanager
def _demo(*arguments: str, **options) -> Iterator[psutil.Popen]:
    demo = psutil.Popen([*COMMAND, *arguments], **options)
    try:
        yield demo
    finally:
        if demo.poll() is None:
            demo.kill()
        demo.wait()


def _children_when(demo: psutil.Popen, count: int) -> list[psutil.Process]:
    found: list[psutil.Process] = []

    def enough() -> bool:
        assert demo.poll() is None, "it ended before it had all its processes"
        found[:] = demo.children(recursive=True)
        return len(found) >= count

    _until(enough, f"{count} processes never ran")
    return found


def _assert_gone(children: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


def test_the_result_is_as_claimed_and_nothing_is_left():
    with _demo(
        "--seconds", "30", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        children = _children_when(demo, 2)
        out, err = demo.communicate()
    result = json.loads(out)
    assert demo.returncode == 0, err + json.dumps(result["claims"])
    assert result["ok"]
    direct, kvgate = result["direct"], result["kvgate"]
    assert direct["preemptions"] > 0
    assert direct["frozen"] > 0
    assert direct["recomputed_tokens"] > 0
    assert (kvgate["preemptions"], kvgate["frozen"], kvgate["recomputed_tokens"]) == (0, 0, 0)
    assert direct["completed"] == kvgate["completed"] == 96
    assert direct["tokens"] == kvgate["tokens"] == 96 * 129
    assert [engine["running_max"] for engine in kvgate["engines"].values()] == [12, 12]
    assert max(engine["running_max"] for engine in direct["engines"].values()) > 12
    assert direct["longest_gap_max_s"] > 3 * kvgate["longest_gap_max_s"]
    assert "\x1b" not in err
    assert "direct" in err
    assert "queue" in err
    _assert_gone(children)


@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_while_starting_and_while_running_ends_everything(processes):
    with _demo("--seconds", "120", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        children = _children_when(demo, processes)
        if processes == 2:
            assert demo.stdout is not None
            assert any("streaming" in line for line in demo.stdout)
        demo.send_signal(signal.SIGINT)
        demo.communicate()
    assert demo.returncode == 130
    _assert_gone(children)


def test_ctrl_c_with_kvgate_running_ends_everything():
    with _demo("--seconds", "20", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as demo:
        children = _children_when(demo, 3)
        demo.send_signal(signal.SIGINT)
        demo.wait()
    assert demo.returncode == 130
    _assert_gone(children)


def test_sigterm_ends_everything():
    with _demo("--seconds", "120", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as demo:
        children = _children_when(demo, 2)
        demo.terminate()
        demo.wait()
    assert demo.returncode == 143
    _assert_gone(children)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux's")
@pytest.mark.parametrize(("seconds", "processes"), [("120", 1), ("120", 2), ("20", 3)])
def test_killed_outright_it_takes_its_children_along(seconds, processes):
    with _demo("--seconds", seconds, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as demo:
        children = _children_when(demo, processes)
        demo.kill()
        demo.wait()
    _assert_gone(children)


def test_a_terminal_gets_a_live_picture_and_its_cursor_back():
    terminal, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "60", "LINES": "30"}
    demo = psutil.Popen(
        [*COMMAND, "--seconds", "120"], env=environment, preexec_fn=lambda: os.login_tty(slave)
    )
    os.close(slave)
    seen = b""
    while b"in use" not in seen:
        seen += os.read(terminal, 65536)
    children = demo.children(recursive=True)
    os.write(terminal, b"\x03")  # Ctrl-C as typed: the terminal signals everyone in the foreground
    seen += _read_to_end(terminal)
    demo.wait()
    assert demo.returncode == 130
    assert b"\x1b[?25l" in seen
    assert seen.rindex(b"\x1b[?25h") > seen.rindex(b"\x1b[?25l")
    assert len(children) == 2
    _assert_gone(children)


def _read_to_end(terminal: int) -> bytes:
    seen = b""
    while True:
        try:
            received = os.read(terminal, 65536)
        except OSError:  # Linux says EIO when the last writer is gone
            received = b""
        if not received:
            os.close(terminal)
            return seen
        seen += received


def test_a_length_that_makes_no_sense_is_refused():
    ended = subprocess.run([*COMMAND, "--seconds", "10"], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "15" in ended.stderr
