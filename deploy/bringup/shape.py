"""The `cpu` shape of compose.yaml, read from that file: so containers and processes can't drift apart.

Only what this compose file uses is understood: lists of arguments, `${NAME:-default}`, ports published on an address,
network aliases. Anything else is a KeyError, IndexError or ValueError, and means that the file changed in a way this
module must learn.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


@dataclass(frozen=True, slots=True)
class Gate:
    """A kvgate."""

    name: str
    command: tuple[str, ...]
    """What follows the entrypoint, `kvgate`."""
    environment: Mapping[str, str]
    port: int
    """Published for clients."""
    admin_port: int


@dataclass(frozen=True, slots=True)
class Engine:
    """A simulated engine."""

    name: str
    address: str
    """HOST:PORT by which the policy file and Prometheus know it."""
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    gates: tuple[Gate, ...]
    engines: tuple[Engine, ...]
    store_options: tuple[str, ...]
    """Of valkey-server."""
    prometheus_port: int


def read_shape(compose: Path, env: Mapping[str, str]) -> Shape:
    """The services of profile `cpu`, with the variables of `env` put in."""
    services: dict[str, dict[str, Any]] = yaml.safe_load(_filled_in(compose.read_text(), env))["services"]
    gates = {name: one for name, one in services.items() if one.get("command") == ["serve"]}
    engines = {name: one for name, one in services.items() if "cpu" in one.get("profiles", [])}
    return Shape(
        gates=tuple(_gate(name, one) for name, one in gates.items()),
        engines=tuple(_engine(name, one) for name, one in engines.items()),
        store_options=tuple(map(str, services["valkey"]["command"][1:])),
        prometheus_port=_published(services["prometheus"])[9090],
    )


def _filled_in(text: str, env: Mapping[str, str]) -> str:
    """As compose does it: an empty variable counts as none."""
    return _VARIABLE.sub(lambda found: env.get(found[1]) or found[2], text)


def _gate(name: str, service: dict[str, Any]) -> Gate:
    environment = {key: str(value or "") for key, value in service["environment"].items()}
    ports = _published(service)
    return Gate(name, tuple(service["command"]), environment, ports[8080], ports[9091])


def _engine(name: str, service: dict[str, Any]) -> Engine:
    [alias] = service["networks"]["default"]["aliases"]
    return Engine(name, f"{alias}:8000", tuple(map(str, service["command"])))


def _published(service: dict[str, Any]) -> dict[int, int]:
    """Port inside → port on this machine."""
    split = (port.split(":") for port in service["ports"])
    return {int(inside): int(outside) for _address, outside, inside in split}
