"""Small pieces that the tests of the replay are made of."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvgate.load.score import Objective
from kvgate.replay import Hardware, Replayed, Workload, make_plans, replay
from kvgate.replay.offered import Offered

HARDWARE = Hardware(1, 101, 16, 1600, 64, 512, "fast:10")
"""One engine of 100 usable blocks of 16, ten milliseconds a step."""


def offered(arrived_s: float = 0.0, tenant: str = "anonymous", **more: Any) -> Offered:
    """Twenty blocks at their peak: five run at once, for a second and a bit."""
    known = {"prompt_tokens": 221, "output_tokens": 100, "max_tokens": 100} | more
    return Offered(arrived_s=arrived_s, tenant=tenant, **known)


def workload(requests: Iterable[Offered]) -> Workload:
    all_of_them = list(requests)
    names = tuple(dict.fromkeys(one.tenant for one in all_of_them))
    return Workload("made here", lambda: all_of_them, max(all_of_them[-1].arrived_s, 1.0), names)


BY_HEADER = "identity: {from: header, name: x-tenant, trusted_proxies: [127.0.0.1/32]}\n"


def policy_file(directory: Path, text: str, name: str = "policy") -> str:
    path = directory / f"{name}.yaml"
    path.write_text("version: 1\npools: {sim: {backends: ['http://127.0.0.1:9']}}\n" + text)
    return str(path)


def one(
    requests: Iterable[Offered],
    policy: str = "default",
    hardware: Hardware = HARDWARE,
    *,
    exact: bool = False,
) -> Replayed:
    """Of one policy."""
    [found] = replay(workload(requests), make_plans([policy], hardware), Objective(), exact=exact)
    return found
