"""The processes of this test bench: one real vLLM, and kvgate in front of it.

Each is a child of the test run, writes its output to a file, is waited for with a bound, and is ended by its
pid. A start that fails shows the end of that file.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from prometheus_client.parser import text_string_to_metric_families

from vllm.steps import StepLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MODEL = "tiny"
BLOCKS = 121
"""As vLLM counts, its null block included: 120 usable ones, exactly 12 requests of 10 blocks."""
BLOCK_SIZE = 32
"""The smallest that vLLM's CPU attention takes."""
MAX_MODEL_LEN = 2048
MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 2048

MAX_TOKENS_DEFAULT = 40
"""What kvgate writes for a client that sets no limit; small, so that it shows in a short window."""

ENGINE_START_S_MAX = 400.0
"""Three processes import torch: 30 s on a quiet machine, 373 s seen on a busy one."""
GATEWAY_START_S_MAX = 60.0
STOP_S_MAX = 30.0

RECIPE = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB, an upper bound only: the block count is given
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else the worker is pinned to core 0, whatever else runs there
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
}


class StartError(Exception):
    """A process ended or stayed silent before it was ready; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A running vLLM."""

    url: str
    steps: StepLog

    @contextmanager
    def paced(self, step_s: float) -> Iterator[None]:
        """Let no step be shorter than `step_s` meanwhile."""
        written = self.steps.pace_path.with_suffix(".new")
        written.write_text(str(step_s))
        written.rename(self.steps.pace_path)  # the engine reads it whole or not at all
        try:
            yield
        finally:
            self.steps.pace_path.unlink()

    def samples(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Its metrics now: for each name (a counter's without `_total`) the labels and values."""
        answer = httpx.get(self.url + "/metrics", timeout=30)
        answer.raise_for_status()
        return {
            family.name: [(sample.labels, sample.value) for sample in family.samples]
            for family in text_string_to_metric_families(answer.text)
        }


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running kvgate."""

    url: str
    admin_url: str


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def engine(python: Path, model: Path, folder: Path, *options: str) -> Iterator[Engine]:
    """Run vLLM with its step log in `folder`; `options` come after those that all have. Raises StartError."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = folder / "steps.jsonl"
    # A folder with the scheduler alone: this one on vLLM's path would hide the real `vllm` package.
    code = folder / "code"
    code.mkdir()
    shutil.copy(Path(__file__).with_name("steplog.py"), code)
    environ = {**os.environ, **RECIPE, "KVGATE_STEPLOG": str(log), "PYTHONPATH": str(code)}
    # `vllm serve` does not start with the CPU wheel (it asks for another distribution's metadata).
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
    command += [*engine_options(model, port), *options]
    with _child(command, environ, folder / "vllm.log", url + "/health", ENGINE_START_S_MAX):
        yield Engine(url, StepLog(log))


def engine_options(model: Path, port: int) -> list[str]:
    options = {
        "--model": model,
        "--served-model-name": MODEL,
        "--host": "127.0.0.1",
        "--port": port,
        "--load-format": "dummy",
        "--dtype": "float32",
        "--seed": 0,
        "--num-gpu-blocks-override": BLOCKS,
        "--block-size": BLOCK_SIZE,
        "--max-model-len": MAX_MODEL_LEN,
        "--max-num-seqs": MAX_NUM_SEQS,
        "--max-num-batched-tokens": MAX_NUM_BATCHED_TOKENS,
        "--scheduler-cls": "steplog.LoggingScheduler",
    }
    flat = [str(part) for pair in options.items() for part in pair]
    return [*flat, "--enforce-eager", "--enable-prefix-caching"]


@contextmanager
def gateway(backend: str, folder: Path, *options: str) -> Iterator[Gateway]:
    """Run `kvgate serve` in front of `backend`. Raises StartError."""
    port, admin_port = free_port(), free_port()
    admin_url = f"http://127.0.0.1:{admin_port}"
    ports = ["--port", str(port), "--admin-port", str(admin_port)]
    command = [sys.executable, "-m", "kvgate", "serve", "--backend", backend, *ports, *options]
    with _child(command, os.environ, folder / "kvgate.log", admin_url + "/readyz", GATEWAY_START_S_MAX):
        yield Gateway(f"http://127.0.0.1:{port}", admin_url)


@contextmanager
def _child(
    command: Sequence[str], environ: Mapping[str, str], log: Path, ready_url: str, start_s_max: float
) -> Iterator[None]:
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            start_new_session=True,  # Ctrl-C is for the test run, which then ends its children in order
            preexec_fn=_die_with_parent,  # noqa: PLW1509 (one system call, and no other threads hold locks here)
        )
    try:
        _wait_ready(child, log, ready_url, start_s_max)
        yield
    finally:
        _end(child)


def _die_with_parent() -> None:
    """A test run that is killed outright must not leave 1.4 GB of vLLM behind (Linux; elsewhere it may)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _wait_ready(child: subprocess.Popen[bytes], log: Path, url: str, start_s_max: float) -> None:
    deadline = time.monotonic() + start_s_max
    while child.poll() is None and time.monotonic() < deadline:
        if _answers(url):
            return
        time.sleep(0.2)
    code = child.poll()
    why = f"not ready in {start_s_max:.0f} s" if code is None else f"ended with {code}"
    last = "\n".join(log.read_text(errors="replace").splitlines()[-60:])
    raise StartError(f"{why}: {child.args!r}\n{last}")


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _end(child: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the process, which ends its own children; what is left of its session then is killed."""
    child.terminate()
    try:
        child.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
