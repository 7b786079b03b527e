"""A pool that is kept full by tenants who always have more: who is served, and in which order?"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvgate.ledger.base import Grant
from kvgate_policies.types import PriorityClass
from unit.ledger.pool import ask

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvgate.ledger.base import Ticket
    from unit.ledger.pool import Probe


@dataclass
class Load:
    """What one tenant asks for as long as it is on: always `waiting` requests in the queue."""

    tenant: str
    blocks: int = 10
    priority: PriorityClass = PriorityClass.STANDARD
    work: Callable[[], int] = lambda: 100
    waiting: int = 6
    on: bool = True
    more: dict[str, Any] = field(default_factory=dict)


class Saturated:
    """Releases the oldest running request, one at a time, and keeps every queue at its length."""

    def __init__(self, probe: Probe, *loads: Load) -> None:
        self.probe = probe
        self.loads = loads
        self.ids = itertools.count()
        self.waiting: dict[str, tuple[Load, Ticket]] = {}
        self.grants: list[Grant] = []
        self.running: list[Grant] = []

    async def fill(self) -> None:
        await self._top_up()

    async def steps(self, count: int) -> list[Grant]:
        """Release that many; the grants that came of it, in order of their steps."""
        began = len(self.grants)
        for _ in range(count):
            await self.probe.ledger.release(self.running.pop(0).request_id)
            await self._collect()
            await self._top_up()
        return self.grants[began:]

    async def grants_of(self, count: int) -> list[Grant]:
        """Go on until so many grants were made."""
        began = len(self.grants)
        while len(self.grants) < began + count:
            await self.steps(1)
        return self.grants[began : began + count]

    async def stop(self, load: Load) -> None:
        """It has nothing more to ask; what waits leaves."""
        load.on = False
        for request_id in [key for key, (whose, _) in self.waiting.items() if whose is load]:
            del self.waiting[request_id]
            await self.probe.ledger.cancel(request_id)
        await self._collect()
        await self._top_up()

    async def start(self, load: Load) -> None:
        load.on = True
        await self._top_up()

    async def _top_up(self) -> None:
        """Bring the queues back to their lengths, in turns, one request of each at a time."""
        short = True
        while short:
            short = False
            for load in self.loads:
                if load.on and sum(whose is load for whose, _ in self.waiting.values()) < load.waiting:
                    short = True
                    await self._arrive(load)

    async def _arrive(self, load: Load) -> None:
        request_id = f"{load.tenant}-{next(self.ids)}"
        asked = ask(
            request_id,
            load.blocks,
            tenant=load.tenant,
            priority=load.priority,
            work=load.work(),
            **load.more,
        )
        self.waiting[request_id] = load, await self.probe.queue(asked)
        await self._collect()

    async def _collect(self) -> None:
        await self.probe.settle()
        for request_id, (_, ticket) in list(self.waiting.items()):
            if ticket.decision is not None:
                assert isinstance(ticket.decision, Grant)
                del self.waiting[request_id]
                self.grants.append(ticket.decision)
                self.running.append(ticket.decision)


def work_by_tenant(grants: list[Grant]) -> Counter[str]:
    total: Counter[str] = Counter()
    for grant in grants:
        total[grant.tenant] += grant.work
    return total


def count_by_tenant(grants: list[Grant]) -> Counter[str]:
    return Counter(grant.tenant for grant in grants)
