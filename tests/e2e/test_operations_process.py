"""Signals and options of real processes: what is said, how fast, with which exit code."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from kvgate.sim import SimServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.e2e

WAIT_S = 30.0
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}


class Process:
    """A `kvgate serve` on free ports, found by what its log says."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self.child = child
        self.lines: list[dict[str, Any]] = []
        self.raw: list[str] = []
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.child.stderr
        async for line in self.child.stderr:
            text = line.decode()
            self.raw.append(text)
            with suppress(ValueError):
                self.lines.append(json.loads(text))

    async def said(self, start: str, times: int = 1) -> str:
        async with asyncio.timeout(WAIT_S):
            while len(found := [m for m in self.messages if m.startswith(start)]) < times:
                await asyncio.sleep(0.02)
        return found[-1]

    @property
    def messages(self) -> list[str]:
        return [str(line["message"]) for line in self.lines]

    async def url(self) -> str:
        return (await self.said("kvgate ")).split(" on ")[1].split()[0]

    async def ended(self) -> int:
        async with asyncio.timeout(WAIT_S):
            await self.reading
            return await self.child.wait()


@asynccontextmanager
async def serving(*options: str) -> AsyncIterator[Process]:
    """With a log of JSON lines; killed at the end if it still runs."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvgate", "serve", "--port", "0", "--admin-port", "0", *options),
        env=CLEAN,
        stderr=subprocess.PIPE,
    )
    process = Process(child)
    try:
        yield process
    finally:
        if child.returncode is None:
            child.kill()
        await process.reading
        await child.wait()


def slow_sim() -> SimServer:
    """A step is long enough for streams to be on their way whatever else happens."""
    return SimServer(blocks=121, block_size=16, max_model_len=1024, profile="vllm-cpu-tiny", model="m")


async def test_a_second_signal_stops_at_once_and_every_client_is_told():
    async with slow_sim() as sim, serving("--backend", sim.url) as process:
        url = await process.url()
        await process.said(f"engine {sim.url}: unknown → up")
        body = {"model": "m", "prompt": [7] * 50, "max_tokens": 900, "ignore_eos": True}
        async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as http:
            streams = [http.post("/v1/completions", json=body | {"stream": True}) for _ in range(2)]
            tasks = [asyncio.create_task(one) for one in streams]
            async with asyncio.timeout(WAIT_S):
                while sim.model.running < 2:
                    await asyncio.sleep(0.02)
                begun = sim.model.counters.steps
                while (
                    sim.model.counters.steps < begun + 10
                ):  # the first tokens of both are on their way by then
                    await asyncio.sleep(0.02)
            tasks.append(asyncio.create_task(http.post("/v1/completions", json=body)))
            await asyncio.sleep(0.1)
            process.child.send_signal(signal.SIGTERM)
            await process.said("draining")
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                with suppress(ProcessLookupError):
                    process.child.send_signal(number)
            answers = await asyncio.gather(*tasks)
        assert await process.ended() == 0
        *cut, refused = answers
        for answer in cut:
            last = json.loads(answer.text.split("data: ")[-1])
            assert (answer.status_code, last["error"]["code"]) == (200, "draining")
        assert (refused.status_code, refused.headers["x-kvgate-reason"]) == (503, "draining")
        assert not [line for line in process.lines if line["level"] == "error"]
        assert all(line.startswith("{") for line in process.raw)
        async with asyncio.timeout(WAIT_S):
            while sim.model.kv_used:
                await asyncio.sleep(0.02)


async def test_streams_of_the_first_signal_finish():
    async with slow_sim() as sim, serving("--backend", sim.url) as process:
        url = await process.url()
        await process.said(f"engine {sim.url}: unknown → up")
        body = {"model": "m", "prompt": [7] * 50, "max_tokens": 60, "ignore_eos": True, "stream": True}
        async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as http:
            stream = asyncio.create_task(http.post("/v1/completions", json=body))
            async with asyncio.timeout(WAIT_S):
                while sim.model.counters.steps < 5:
                    await asyncio.sleep(0.02)
            process.child.send_signal(signal.SIGINT)
            assert (await stream).text.endswith("data: [DONE]\n\n")
        assert await process.ended() == 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks at the signals that are held back")
async def test_a_reload_that_comes_during_the_start_waits_for_it(tmp_path: Path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\npools:\n  p:\n    backends: [http://127.0.0.1:9]\n")
    async with serving("--policy", str(policy)) as process:
        status = Path(f"/proc/{process.child.pid}/status")
        async with asyncio.timeout(WAIT_S):
            while not int(status.read_text().split("SigBlk:")[1].split()[0], 16) & 1:
                await asyncio.sleep(0.005)
        policy.write_text(
            "version: 1\npools:\n  p:\n    backends: [http://127.0.0.1:9, http://127.0.0.1:10]\n"
        )
        process.child.send_signal(signal.SIGHUP)
        await process.said("settings reloaded; backends:")
        policy.write_text("version: 1\npools: [\n")
        process.child.send_signal(signal.SIGHUP)
        assert f"{policy}: line" in await process.said("settings not reloaded")
        process.child.send_signal(signal.SIGTERM)
        assert await process.ended() == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            "sim-engine --blocks 5 --block-size 16 --max-model-len 4096 --max-num-seqs 4 --port 0",
            "kvgate: a sequence of max_model_len 4096 takes 256 blocks of 16, but only 4 are usable: ",
        ),
        (
            "serve --backend http://127.0.0.1:9 --host 127.0.0.999",
            "kvgate: cannot listen on 127.0.0.999 port",
        ),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_2(arguments: str, said: str):
    command = [sys.executable, "-m", "kvgate", *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, env=CLEAN, timeout=WAIT_S, check=False)
    (line,) = done.stderr.splitlines()
    assert line.startswith(said)
    assert done.returncode == 2


async def test_check_says_what_is_wrong_with_a_backend_in_plain_words():
    async def check(url: str) -> tuple[int | None, str]:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kvgate", "check", "--json", "--backend", url),
            env=CLEAN,
            stdout=subprocess.PIPE,
        )
        out, _ = await child.communicate()
        (backend,) = json.loads(out)["backends"]
        return child.returncode, backend["errors"][0]

    async with slow_sim() as sim:
        found = await asyncio.gather(
            check("http://127.0.0.1:9"),
            check(sim.url.replace("http", "https")),
            check(f"{sim.url}/llm"),
        )
    assert [code for code, _ in found] == [1, 1, 1]
    refused, tls, path = (error for _, error in found)
    assert refused == "GET /metrics: cannot connect to 127.0.0.1:9: Connection refused"
    assert tls.endswith("it does not speak TLS; http:// instead of https://?")
    assert path == "GET /metrics: HTTP 404; GET /health: HTTP 404"
