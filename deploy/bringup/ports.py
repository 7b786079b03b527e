"""Where everything listens: on the ports that the compose file publishes, or on free ones. Always on 127.0.0.1."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvgate.demo.children import free_ports

if TYPE_CHECKING:
    from bringup.shape import Shape

HOST = "127.0.0.1"


class PortTakenError(Exception):
    """A published port is in use; the message says which."""


@dataclass(frozen=True, slots=True)
class Places:
    """What the compose file does not publish."""

    store_port: int
    engines: dict[str, str]
    """HOST:PORT in the compose file → here."""


def places_for(shape: Shape) -> Places:
    store, *engines = free_ports(1 + len(shape.engines))
    pairs = zip(shape.engines, engines, strict=True)
    return Places(store, {engine.address: f"{HOST}:{port}" for engine, port in pairs})


def with_free_ports(shape: Shape) -> Shape:
    """The same on other ports."""
    ports = iter(free_ports(2 * len(shape.gates) + 1))
    gates = tuple(replace(gate, port=next(ports), admin_port=next(ports)) for gate in shape.gates)
    return replace(shape, gates=gates, prometheus_port=next(ports))


def check_free(shape: Shape) -> None:
    """Before anything is started. Raises PortTakenError."""
    for port in (
        *(port for gate in shape.gates for port in (gate.port, gate.admin_port)),
        shape.prometheus_port,
    ):
        try:
            socket.create_server((HOST, port)).close()
        except OSError as error:
            raise PortTakenError(f"port {port}: {error.strerror}; --free-ports takes others") from error
