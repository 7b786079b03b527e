"""Pools without sockets: lines whose ledger is one in memory that can be away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgate.assembly.pools import House, build
from kvgate.clock import Clock
from kvgate.config.settings import PoolSpec, Settings
from kvgate.config.tenants import TenantBook, anonymous_book
from kvgate.engines.transport import AiohttpTransport
from kvgate.ledger.memory import MemoryLedger
from kvgate_policies.types import TenantPolicy, TenantRules


class Hand(Clock):
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Away(MemoryLedger):
    """Refuses everything about policy while `away`; counts what it was told."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.away = False
        self.rules: list[Mapping[str, TenantRules]] = []

    async def set_tenants(self, rules: Mapping[str, TenantRules]) -> None:
        self._must_be_there()
        self.rules.append(rules)
        await super().set_tenants(rules)

    async def put_override(self, name: str, text: str | None, ttl_s: float) -> None:
        self._must_be_there()
        await super().put_override(name, text, ttl_s)

    async def overrides(self) -> Mapping[str, tuple[str, float]]:
        self._must_be_there()
        return await super().overrides()

    def _must_be_there(self) -> None:
        if self.away:
            raise ConnectionError("away")


def settings(*names: str, book: TenantBook | None = None, **more: Any) -> Settings:
    specs = tuple(
        PoolSpec(name=name, backends=(f"http://{name}-1:8000", f"http://{name}-2:8000")) for name in names
    )
    flat = Settings(pool=names[0], backends=specs[0].backends, **more)
    update: dict[str, Any] = {"pools": specs if len(specs) > 1 else ()}
    if book is not None:
        update["book"] = book
    return flat.model_copy(update=update)


def a_book(*names: str) -> TenantBook:
    from dataclasses import replace  # noqa: PLC0415

    return replace(anonymous_book(TenantPolicy()), names=names)


def a_house(made: Settings, clock: Clock) -> House:
    """Nothing is asked of the network: no probe is started."""
    house = build(made, clock, AiohttpTransport(1))
    for line in house.pools.lines:
        object.__setattr__(line, "ledger", Away(clock))
    return house


def ledger_of(house: House, index: int = 0) -> Away:
    ledger = house.pools.lines[index].ledger
    assert isinstance(ledger, Away)
    return ledger
