"""Two clients with three calls each, in every order in which their calls can meet.

Each call is one step of the event loop, so the orders of the calls are all the interleavings there are.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest

from kvgate.ledger.base import Grant, RateSpent, Refusal
from kvgate.ledger.memory import MemoryLedger
from kvgate_policies.types import ZERO_COST
from unit.ledger.pool import HandClock, ask, cost, engine, turns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvgate.ledger.base import Ticket

SCRIPTS = (
    ("reserve", "cancel", "cancel"),
    ("reserve", "release", "release"),
    ("reserve", "cancel", "release"),
    ("reserve", "renew", "release"),
    ("reserve", "grow", "cancel"),
    ("reserve", "release", "reserve"),
    ("cancel", "reserve", "release"),
)
SIZES = ((60, 60), (40, 40), (60, 30), (100, 1))


def merges(first: int, second: int) -> Iterator[tuple[int, ...]]:
    """All orders of `first` calls of client 0 and `second` calls of client 1."""
    for places in itertools.combinations(range(first + second), first):
        yield tuple(0 if place in places else 1 for place in range(first + second))


class Client:
    def __init__(self, ledger: MemoryLedger, name: str, blocks: int, script: tuple[str, ...]) -> None:
        self.ledger, self.name, self.blocks = ledger, name, blocks
        self.calls = iter(script)
        self.ticket: Ticket | None = None
        self.watches: list[asyncio.Task[object]] = []

    async def call(self) -> None:
        match next(self.calls):
            case "reserve":
                ticket = await self.ledger.reserve(ask(self.name, blocks=self.blocks))
                assert not isinstance(ticket, Refusal | RateSpent)
                self.ticket = ticket
                self.watches.append(asyncio.ensure_future(ticket.granted()))
            case "cancel":
                await self.ledger.cancel(self.name)
                self.ticket = None
            case "release":
                await self.ledger.release(self.name)
                self.ticket = None
            case "renew":
                await self.ledger.renew(self.name, cost(1))
            case _:  # "grow"
                await self.ledger.renew(self.name, cost(90))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("scripts", list(itertools.combinations_with_replacement(SCRIPTS, 2)), ids=str)
async def test_every_order_of_two_clients(scripts, sizes):
    for order in merges(len(scripts[0]), len(scripts[1])):
        await run(order, scripts, sizes)


async def run(
    order: tuple[int, ...], scripts: tuple[tuple[str, ...], tuple[str, ...]], sizes: tuple[int, int]
) -> None:
    ledger = MemoryLedger(HandClock())
    await ledger.observe(engine())
    clients = [Client(ledger, name, sizes[number], scripts[number]) for number, name in enumerate("pq")]
    for number in order:
        await clients[number].call()
        check(ledger, clients)
    for client in clients:
        await ledger.cancel(client.name)
    view = ledger.view()
    assert (view.queued, view.engines[0].reserved) == (0, ZERO_COST)
    await turns(3)
    watches = [watch for client in clients for watch in client.watches]
    granted = [watch for watch in watches if watch.exception() is None]
    assert len(granted) <= view.totals["grants"], "a grant reached two waiters"


def check(ledger: MemoryLedger, clients: list[Client]) -> None:
    view = ledger.view()
    (use,) = view.engines
    present = [client for client in clients if client.ticket is not None]
    assert view.queued + use.reservations == len(present)
    decided = [client for client in present if client.ticket and holds(ledger, client)]
    assert len(decided) == use.reservations
    if view.queued:
        (waiting,) = [client for client in present if client not in decided]
        assert use.reserved.blocks + waiting.blocks > 100, "it fits, but waits"


def holds(ledger: MemoryLedger, client: Client) -> bool:
    """Whether its decision is there; asking takes no turn of the loop when it is."""
    assert client.ticket is not None
    waiting = client.ticket.granted()
    try:
        waiting.send(None)
    except StopIteration as answer:
        return isinstance(answer.value, Grant)
    waiting.close()
    return False
