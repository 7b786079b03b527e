"""The simulator as a process: it says where it is, and ends cleanly on a signal."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest

pytestmark = pytest.mark.e2e

PROGRAM = "from kvgate.sim import run; run(port=0, model='tiny', profile='fast', blocks=121, block_size=32)"


@contextmanager
def process():
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout
        line = child.stdout.readline()
        yield child, next(word for word in line.split() if word.startswith("http://"))
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_code_0_and_no_noise(number):
    with process() as (child, url):
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "tiny"
        child.send_signal(number)
        assert child.wait(20) == 0
        assert child.stderr.read() == ""


def test_sigterm_ends_a_stream_with_abort_and_done():
    with process() as (child, url):
        body = {"prompt": "hello", "max_tokens": 2000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=20) as answer:
            lines = answer.iter_lines()
            next(lines)
            child.send_signal(signal.SIGTERM)
            told = [line for line in lines if line]
        assert '"finish_reason":"abort"' in told[-2]
        assert told[-1] == "data: [DONE]"
        assert child.wait(20) == 0


def test_a_reset_is_a_real_one_on_its_own_loop_too():
    with process() as (_, url), pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
        httpx.post(f"{url}/v1/completions", json={"prompt": "hello"}, headers={"x-sim-fault": "reset-before"})


def test_a_port_in_use_is_an_error():
    with process() as (_, url):
        program = PROGRAM.replace("port=0", f"port={url.rpartition(':')[2]}")
        other = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
        )
        assert other.returncode != 0
        assert "Address already in use" in other.stderr
