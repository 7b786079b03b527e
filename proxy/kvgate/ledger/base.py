"""The contract of a ledger: may this start now, and where?

One ledger per pool. It is the only place where that is decided, and check and reserve are one step. Duties:

* `reserve` enqueues, then runs the grant loop: one code path, so that an arrival cannot jump the queue.
* Whoever got a `Ticket` owes exactly one `cancel` or `release` for its request id, whatever happens. Both are
  idempotent, safe after each other, and never fail for an id that is not known (any more).
* A request is granted at most once per `reserve`, and never after its `cancel` returned. A grant that
  crosses a cancel is given back by the cancel.
* Whatever frees capacity runs the grant loop before it returns: no lost wake-up.
* Who goes next (`kvgate_policies.fairness` has the sources and the bounds):
  - A *flow* is one tenant's requests of one class. Inside it: by `rank` (0 for `fifo`), then by `seq`.
  - First the flows of tenants that hold fewer blocks than their guarantee: by class, then by start tag. What
    they wait for is kept free at once (a pin without waiting for bypasses).
  - Then the classes in their order. A class that was overtaken by `AGEING` grants of higher classes while one
    of its flows could have been served comes first, once.
  - Inside a class start-time fair queueing over the weights: the flow with the lowest start tag; equal tags by
    name. A grant charges `work / weight` to the flow; the class's virtual time is the start tag of the last
    grant; a flow that begins to wait starts at no less than it, so that idling earns nothing. The end of a
    request corrects the charge.
  - A tenant at its limit is out of the walk: its flow waits for its own requests to end. With `borrow` off the
    limit is the guarantee, and the part of it that is not used is open to nobody else.
* Others that fit may pass one that does not fit, at most `bypass_max` times; then it is pinned to the engine that
  will fit it soonest and nothing new starts there before it. Up to `FLOWS_MAX` flows, `scan_depth` deep each.
* A tenant's rate budgets (GCRA) are checked and charged in the same step as the queue's depth: a request that is
  refused spends nothing.
* A reservation is *guaranteed* (its peak, to the end) or *forecast* (`KVCost.expected`); both share an engine. At a
  grant, at every point of the grid, the sum of means and `z` standard deviations is within what is open of the
  engine (`EngineLimits.blocks_open`), `z` being the newcomer's; or the sum of peaks is, more than which can't be held.
  What changes later, costs that grow or a capacity that falls, only blocks grants.
* An engine with nothing reserved takes any request whose peak its whole capacity covers (prefill bound aside).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from kvgate_policies.forecast_fit import Z_DEFAULT, ZVector
from kvgate_policies.types import (
    EngineLimits,
    EngineShape,
    KVCost,
    LedgerView,
    PriorityClass,
    TenantRules,
)


class Refusal(StrEnum):
    """Why a ledger did not take or keep a request."""

    QUEUE_FULL = "queue_full"
    NO_ENGINE = "no_engine"
    """No engine is known, apart from those to be avoided."""
    NEVER_FITS = "never_fits"
    """Larger than the whole of every engine it is priced for."""
    DRAINING = "draining"
    UNAVAILABLE = "unavailable"
    RATE = "rate"
    """A budget of the tenant is spent; `RateSpent` has the time."""


@dataclass(frozen=True, slots=True)
class RateSpent:
    """The refusal of a request that a budget of its tenant does not cover now."""

    retry_after_s: float
    """When the same request would be covered, if nobody spends meanwhile: exact."""
    budget: Literal["tokens_per_minute", "requests_per_minute"]
    """The one that is covered last."""


def refusal_of(answer: Refusal | RateSpent) -> Refusal:
    """Why, not for how long."""
    return Refusal.RATE if isinstance(answer, RateSpent) else answer


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for room."""

    request_id: str
    """Unique for the life of the ledger; made by kvgate, never the client's."""
    tenant: str
    costs: Mapping[EngineShape, KVCost]
    """The price on each shape of engine in the pool; an engine of another shape is not considered."""
    queue_depth_max: int
    """A tenant with this many waiting requests or more is refused; not applied when `seq` is given."""
    seq: int | None = None
    """The place in the order, kept when a granted request has to queue again. It was charged to the budgets
    already, so they are not asked again."""
    priority: PriorityClass = PriorityClass.STANDARD
    work: int = 1
    """Service charged at the grant: prompt plus twice the expected output, tokens."""
    tokens: int = 0
    """What the tenant's token budget is charged: prompt plus expected output."""
    rank_in_ms: int | None = None
    """Where it stands inside its flow: that far from now (the end of its wait; less for a short one). None: by
    arrival. Not used when `seq` is given."""
    rank: int = 0
    """The place kept together with `seq`: ms by the ledger's clock, 0 for one by arrival."""
    force: bool = False
    """Start at once whatever is reserved, on the engine with the most room; `Grant.forced` says what would have
    been done. Only `NO_ENGINE` and a closed ledger still refuse."""
    avoid: frozenset[str] = frozenset()
    """Engine ids that are not to be chosen (they just failed this request)."""
    z: ZVector = Z_DEFAULT
    """Standard deviations that are left free beside forecasts when it starts, for each point of the grid."""
    prefer: tuple[str, ...] = ()
    """Engine ids that have its prompt's beginning in their cache, the best first: where it fits one of them now it
    starts there, unless that one is much fuller than others (`kvgate_policies.placement`)."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission to start, on one engine, at this cost. Ends with `release`."""

    request_id: str
    engine_id: str
    shape: EngineShape
    """The engine's, to price the request on it again when more is known."""
    cost: KVCost
    seq: int
    tenant: str = "anonymous"
    priority: PriorityClass = PriorityClass.STANDARD
    work: int = 1
    tokens: int = 0
    rank: int = 0
    forced: Literal["queued"] | Refusal | None = None
    """For a forced one: what would have been done instead; None when it would have been granted at once."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a request really took, to correct what was charged for it."""

    work: int
    """Prompt plus twice the output, tokens."""
    tokens: int
    """Prompt plus output, tokens."""


class Ticket(Protocol):
    """A place in the queue (perhaps granted already)."""

    @property
    def request_id(self) -> str: ...

    @property
    def seq(self) -> int: ...

    @property
    def position(self) -> int:
        """How many are ahead in its flow; 0 for the next one and for a granted one."""
        ...

    @property
    def decision(self) -> Grant | Refusal | None:
        """What was decided already; None while it waits."""
        ...

    async def granted(self) -> Grant | Refusal:
        """Wait for the decision. Cancelling the wait changes nothing: the owner still owes `cancel`."""
        ...


class Ledger(Protocol):
    async def reserve(self, ask: Ask) -> Ticket | Refusal | RateSpent:
        """Enqueue and run the grant loop. A `Refusal` leaves nothing behind.

        Raises ValueError for a request id that is queued or holds a reservation already.
        """
        ...

    async def cancel(self, request_id: str) -> None:
        """Leave the queue; if a grant crossed it, give that back."""
        ...

    async def renew(self, request_id: str, cost: KVCost) -> None:
        """Replace the cost of a held reservation (absolute, idempotent): prefill done, a corrected prompt count.

        A larger cost is never refused: it may overdraw the engine, which only blocks grants until it drains. From
        when this returns, all that share the ledger decide by it.
        """
        ...

    async def renew_many(self, costs: Mapping[str, KVCost]) -> None:
        """As `renew` for each; ids that hold nothing are left out. For forecasts, which change as tokens come.

        Cheap, and not at once: a shared ledger is told of it all with the next heartbeat.
        """
        ...

    async def reprice(self, request_id: str, costs: Mapping[EngineShape, KVCost]) -> None:
        """Replace the prices of a queued request, after an engine of a new shape joined the pool."""
        ...

    async def release(self, request_id: str, served: Served | None = None) -> None:
        """End the reservation and give everything back; `served` corrects what was charged at the grant."""
        ...

    async def set_tenants(self, rules: Mapping[str, TenantRules]) -> None:
        """The rules of all tenants of the pool; a tenant that is not named has `TenantRules()`.

        Nobody who waits or runs is dropped by it. Shared ledgers keep what was said last.
        """
        ...

    async def put_override(self, name: str, text: str | None, ttl_s: float) -> None:
        """Keep a text under a name, for every process that shares the ledger, until `ttl_s` is over; None ends it."""
        ...

    async def overrides(self) -> Mapping[str, tuple[str, float]]:
        """The texts that hold now, each with the seconds that are left."""
        ...

    async def observe(self, limits: EngineLimits) -> None:
        """Add an engine, or change its capacity or whether it accepts work."""
        ...

    async def forget(self, engine_id: str) -> None:
        """Remove an engine; what it held is void, and the later releases of it are no-ops."""
        ...

    async def void(self, engine_id: str) -> None:
        """The engine restarted: nothing that was reserved on it exists there any more."""
        ...

    async def settle(self, engine_id: str, blocks_in_use: int, seqs: int | None = None) -> KVCost | None:
        """What an engine's own gauges show, after each scrape: blocks in use, sequences running and waiting.

        Returns all that is reserved there at this moment, to be set beside it; None where that can't be said.
        """
        ...

    async def close(self, reason: Refusal) -> None:
        """Stop granting and answer everyone in the queue, and every later `reserve`, with `reason`.

        Running reservations live on until released.
        """
        ...

    @property
    def mode(self) -> str:
        """Who decides now: `memory` or `redis`, or while that is away `local`, `closed` or `open`."""
        ...

    @property
    def lease_sure(self) -> bool:
        """Whether what was granted here surely is this process's still.

        False when it was away for so long (stopped, cut off) that the room may be another's by now. Who has a grant
        and did not begin gives it back then, and queues again at its place.
        """
        ...

    def scrapes(self, backend: str) -> bool:
        """Whether this process is the one, of all that share the ledger, that scrapes a backend with every probe and
        says what it can take; True for all as long as they don't know of each other.
        """
        ...

    def view(self) -> LedgerView: ...
