"""A real Prometheus for tests: brought if the machine has none, started on a free port, asked over HTTP.

It is the one that `make up` finds or fetches, with the `promtool` beside it. Where that doesn't work, `programs` gives
None and tests skip.

    with PrometheusServer({"kvgate": ["127.0.0.1:9091"]}, rules=["rules.yaml"], scrape_s=1) as prometheus:
        prometheus.ask("sum (kvgate_queue_depth)")
        prometheus.ask_range("kvgate_queue_depth", start_s, end_s, step_s=1)
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bringup.monitoring import find_prometheus
from support.redis_server import HOST, die_with_parent, free_port

START_S_MAX = 30.0
"""For a server to answer on a busy machine; half a second is usual."""

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Matrix = dict[Labels, list[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Programs:
    prometheus: Path
    promtool: Path


@functools.cache
def programs() -> Programs | None:
    """Where the two programs are; None if the machine has none and apt cannot bring them."""
    prometheus = find_prometheus()
    if prometheus is None:
        return None
    promtool = Path(prometheus).with_name("promtool")
    return Programs(Path(prometheus), promtool) if promtool.exists() else None


class PrometheusError(Exception):
    """The server did not take a query; the message is its own."""


class PrometheusServer:
    """One server process that scrapes `targets` (job → addresses) and evaluates `rules` (files)."""

    def __init__(
        self, targets: Mapping[str, Sequence[str]], *, rules: Sequence[Path] = (), scrape_s: float = 1.0
    ) -> None:
        found = programs()
        if found is None:
            raise FileNotFoundError("no prometheus on this machine, and apt cannot bring one")
        self._program = found.prometheus
        self._folder = tempfile.TemporaryDirectory(prefix="kvgate-prometheus-")
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        self._write(targets, rules, scrape_s)

    def _write(self, targets: Mapping[str, Sequence[str]], rules: Sequence[Path], scrape_s: float) -> None:
        """JSON is YAML."""
        pace = f"{round(scrape_s * 1000)}ms"
        config = {
            "global": {"scrape_interval": pace, "scrape_timeout": pace, "evaluation_interval": pace},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": list(addresses)}]}
                for job, addresses in targets.items()
            ],
        }
        (Path(self._folder.name) / "prometheus.yml").write_text(json.dumps(config))

    def start(self) -> Self:
        """Start, and return once it is ready. Raises RuntimeError with its output when it ends instead."""
        log = Path(self._folder.name) / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    str(self._program),
                    f"--web.listen-address={HOST}:{self.port}",
                    "--config.file=prometheus.yml",
                    "--storage.tsdb.path=data",
                    "--enable-feature=exemplar-storage",
                    "--log.level=warn",
                ],
                cwd=self._folder.name,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
            )
        end_s = time.monotonic() + START_S_MAX
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"prometheus did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        return self

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1.0) as answer:  # noqa: S310  our own
                return bool(answer.status == 200)
        except OSError:
            return False

    def ask(self, query: str, at_s: float | None = None) -> Vector:
        """An instant query. Raises PrometheusError."""
        asked = {"query": query} | ({} if at_s is None else {"time": f"{at_s:.3f}"})
        data = self.get("query", asked)
        if data["resultType"] == "scalar":
            return {frozenset(): float(data["result"][1])}
        return {_labels(row["metric"]): float(row["value"][1]) for row in data["result"]}

    def ask_range(self, query: str, start_s: float, end_s: float, step_s: float) -> Matrix:
        """A range query. Raises PrometheusError."""
        asked = {"query": query, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        data = self.get("query_range", asked)
        return {
            _labels(row["metric"]): [(float(at), float(value)) for at, value in row["values"]]
            for row in data["result"]
        }

    def get(self, path: str, parameters: Mapping[str, str] | None = None) -> Any:
        """`data` of an answer of the HTTP API. Raises PrometheusError."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters or {})}"
        try:
            with urllib.request.urlopen(url, timeout=10.0) as answer:  # noqa: S310  our own
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise PrometheusError(f"{dict(parameters or {})}: {refused.read().decode()}") from refused

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


def _labels(metric: Mapping[str, str]) -> Labels:
    return frozenset(metric.items())
