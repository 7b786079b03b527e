"""The ledger of one process: the embedded default, and the specification other ledgers are compared with.

All deciding is in `core`; this shell hands the decisions to those who wait for them. None of its calls waits,
except `Ticket.granted`, so each is one atomic step of the event loop: there is no await point at which a
cancelled task could leave half a reservation behind.

A decision is stored in the ticket and only announced by an event. A waiter that was cancelled, or that has
not run yet, loses nothing: the decision is there for the next one who asks, until the owner's `cancel` or
`release` takes it back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kvgate.ledger.base import Ask, Grant, RateSpent, Refusal, Served, Ticket
from kvgate.ledger.core import LedgerCore
from kvgate.ledger.overrides import Overrides

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvgate.clock import Clock
    from kvgate_policies.types import EngineLimits, EngineShape, KVCost, LedgerView, TenantRules


class MemoryTicket:
    """A place in the queue of a `MemoryLedger`."""

    def __init__(self, core: LedgerCore, request_id: str, seq: int) -> None:
        self._core = core
        self._request_id = request_id
        self._seq = seq
        self._decision: Grant | Refusal | None = None
        self._decided = asyncio.Event()

    @property
    def request_id(self) -> str:
        return self._request_id

    @property
    def seq(self) -> int:
        return self._seq

    @property
    def position(self) -> int:
        return self._core.position(self._request_id)

    @property
    def decision(self) -> Grant | Refusal | None:
        return self._decision

    async def granted(self) -> Grant | Refusal:
        """Wait for the decision; asked again, it is the same.

        Raises RuntimeError when the owner has ended the request: there is no answer any more, and a waiter
        that was left behind is told so instead of waiting for ever.
        """
        await self._decided.wait()
        if self._decision is None:
            raise RuntimeError(f"request {self._request_id} was ended by its owner")
        return self._decision

    def decide(self, decision: Grant | Refusal | None) -> None:
        """For the ledger: store and announce a decision, or with None take it back for good."""
        self._decision = decision
        self._decided.set()

    def __repr__(self) -> str:
        state = "ended" if self._decided.is_set() else f"waiting at {self.position}"
        return f"<MemoryTicket {self._request_id} seq {self._seq}: {self._decision or state}>"


class MemoryLedger:
    """A `Ledger` in the memory of one process and one event loop.

    `bypass_max`, `scan_depth` and `grants_per_call_max` are the bounds of the grant loop (`grants`): how
    often a request is passed, how many that do not fit are looked past, and how much one call may start
    before it lets others run. Four looked past is where it levels off: in simulated mixes of small and large
    requests on one and on four engines, more neither filled the engines better nor shortened the waits.
    `tie` is where the turns among equally loaded engines begin.
    """

    def __init__(
        self,
        clock: Clock,
        bypass_max: int = 8,
        scan_depth: int = 4,
        grants_per_call_max: int = 16,
        tie: int = 0,
    ) -> None:
        self._clock = clock
        self._core = LedgerCore(
            bypass_max=bypass_max, scan_depth=scan_depth, grants_max=grants_per_call_max, tie=tie
        )
        self._overrides = Overrides()
        self._tickets: dict[str, MemoryTicket] = {}
        """Of everyone who still owes a `cancel` or `release`."""
        self._continuing = False

    async def reserve(self, ask: Ask) -> Ticket | Refusal | RateSpent:
        answer = self._core.reserve(ask, self._clock.monotonic())
        if not isinstance(answer, int):
            self._announce()
            return answer
        ticket = MemoryTicket(self._core, ask.request_id, answer)
        self._tickets[ask.request_id] = ticket
        self._announce()
        return ticket

    async def cancel(self, request_id: str) -> None:
        self._end(request_id)

    async def renew(self, request_id: str, cost: KVCost) -> None:
        self._core.renew(request_id, cost)
        self._announce()

    async def renew_many(self, costs: Mapping[str, KVCost]) -> None:
        """Raises ValueError for a negative cost, and changes nothing then."""
        self._core.renew_many(costs)
        self._announce()

    async def reprice(self, request_id: str, costs: Mapping[EngineShape, KVCost]) -> None:
        self._core.reprice(request_id, costs)
        self._announce()

    async def release(self, request_id: str, served: Served | None = None) -> None:
        self._end(request_id, served)

    async def set_tenants(self, rules: Mapping[str, TenantRules]) -> None:
        """Raises ValueError for impossible rules, and changes nothing then."""
        self._core.set_tenants(rules)
        self._announce()

    async def put_override(self, name: str, text: str | None, ttl_s: float) -> None:
        """Raises ValueError for one that would be over already, and for one too many."""
        self._overrides.put(name, text, ttl_s, self._clock.monotonic())

    async def overrides(self) -> Mapping[str, tuple[str, float]]:
        return self._overrides.current(self._clock.monotonic())

    async def observe(self, limits: EngineLimits) -> None:
        self._core.observe(limits)
        self._announce()

    async def forget(self, engine_id: str) -> None:
        self._core.forget(engine_id)
        self._announce()

    async def void(self, engine_id: str) -> None:
        self._core.void(engine_id)
        self._announce()

    async def settle(self, engine_id: str, blocks_in_use: int, seqs: int | None = None) -> KVCost | None:  # noqa: ARG002  nobody is gone
        return self._core.reserved_on(engine_id)

    async def close(self, reason: Refusal) -> None:
        self._core.close(reason)
        self._announce()

    @property
    def mode(self) -> str:
        return "memory"

    @property
    def queued(self) -> int:
        """Requests that wait; `view` says much more, and takes longer."""
        return self._core.queued

    @property
    def lease_sure(self) -> bool:
        """Nobody else could have it."""
        return True

    def scrapes(self, backend: str) -> bool:  # noqa: ARG002  there is nobody else
        return True

    def view(self) -> LedgerView:
        return self._core.view(self._clock.monotonic())

    def __repr__(self) -> str:
        return f"<MemoryLedger {self._core!r}>"

    def _end(self, request_id: str, served: Served | None = None) -> None:
        """`cancel` and `release` are one: whichever the owner calls, nothing of the request stays behind."""
        self._core.end(request_id, served)
        ticket = self._tickets.pop(request_id, None)
        if ticket is not None:
            ticket.decide(None)
        self._announce()

    def _announce(self) -> None:
        """Hand out what was decided; if the grant loop stopped at its bounds, let it go on soon."""
        for request_id, decision in self._core.take_decisions():
            self._tickets[request_id].decide(decision)
        if self._core.unfinished and not self._continuing:
            self._continuing = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._continuing = False
        self._core.go_on()
        self._announce()
