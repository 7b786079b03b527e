"""Two simulated engines, and kvgate in front of them, as processes on free ports of 127.0.0.1."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp

from kvgate.demo.children import ChildFailedError, Children, free_ports, ready

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from kvgate.demo.plan import DemoPlan

_LOOK_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_STARTS_MAX = 3
"""Someone else can take a free port before the child binds it; three times in a row is another trouble."""
_QUEUE_WAIT = "3600s"
"""Longer than any demo: nobody is turned away, so that both ways do the same work."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Front:
    """Where kvgate answers."""

    url: str
    admin_url: str


async def start_engines(children: Children, plan: DemoPlan) -> list[str]:
    """Start the engines and wait until they are ready. Raises ChildFailedError."""
    starts = (_retried(partial(_start_engine, children, plan, n)) for n in range(1, plan.engines + 1))
    return await asyncio.gather(*starts)


async def start_kvgate(children: Children, engines: list[str]) -> Front:
    """Start kvgate and wait until it sends to every engine. Raises ChildFailedError."""
    return await _retried(partial(_start_kvgate, children, engines))


async def _start_engine(children: Children, plan: DemoPlan, number: int) -> str:
    [port] = free_ports(1)
    child = children.start(f"engine {number}", *engine_arguments(plan, port))
    async with aiohttp.ClientSession(timeout=_LOOK_TIMEOUT) as http:
        await ready(http, child, f"{_url(port)}/health")
    return _url(port)


async def _start_kvgate(children: Children, engines: list[str]) -> Front:
    """Ready with one engine is not enough here: the first requests would all queue for that one."""
    port, admin_port = free_ports(2)
    admin = _url(admin_port)
    child = children.start("kvgate", *kvgate_arguments(engines, port, admin_port))
    async with aiohttp.ClientSession(timeout=_LOOK_TIMEOUT) as http:
        await ready(http, child, admin + "/readyz")
        await ready(http, child, admin + "/admin/ledger", lambda view: _accepting(view) == set(engines))
    return Front(_url(port), admin)


async def _retried(start: Callable[[], Awaitable[T]]) -> T:
    """Once more, with other ports, when somebody else took one in between."""
    for _ in range(_STARTS_MAX - 1):
        try:
            return await start()
        except ChildFailedError as failed:
            if "address already in use" not in str(failed).lower():
                raise
    return await start()


def _accepting(view: Any) -> set[str]:
    return {engine["engine_id"] for engine in view["engines"] if engine["accepting"]}


def engine_arguments(plan: DemoPlan, port: int) -> list[str]:
    """The command line of one simulated engine."""
    options: dict[str, str | int] = {
        "host": "127.0.0.1",
        "port": port,
        "blocks": plan.blocks,
        "block-size": plan.block_size,
        "max-model-len": plan.max_model_len,
        "max-num-seqs": plan.max_num_seqs,
        "profile": plan.profile,
        "model": plan.model,
    }
    return ["sim-engine", *_flags(options)]


def kvgate_arguments(engines: list[str], port: int, admin_port: int) -> list[str]:
    """The command line of kvgate; all else is left at its defaults."""
    backends = [word for url in engines for word in ("--backend", url)]
    options: dict[str, str | int] = {
        "host": "127.0.0.1",
        "port": port,
        "admin-host": "127.0.0.1",
        "admin-port": admin_port,
        "queue-wait": _QUEUE_WAIT,
    }
    return ["serve", *backends, *_flags(options)]


def _flags(options: Mapping[str, str | int]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"
