"""The contract of a ledger: may this start now, and where?

One ledger per pool. It is the only place where that is decided, and check and reserve are one step. Duties:

* `reserve` enqueues, then runs the grant loop: one code path, so that an arrival cannot jump the queue.
* Whoever got a `Ticket` owes exactly one `cancel` or `release` for its request id, whatever happens. Both are
  idempotent, safe after each other, and never fail for an id that is not known (any more).
* A request is granted at most once per `reserve`, and never after its `cancel` returned. A grant that
  crosses a cancel is given back by the cancel.
* Whatever frees capacity runs the grant loop before it returns: no lost wake-up.
* Order is FIFO by `seq`. Others that fit may pass a head that does not fit, at most `bypass_max` times; then
  the head is pinned to the engine that will fit it soonest and nothing new starts there before it.
* In guaranteed mode the sum of reserved blocks of an engine never exceeds its capacity at a grant; a later
  drop of the capacity only blocks grants.
* An engine with nothing reserved takes any request whose cost its whole capacity covers (prefill bound aside).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from kvgate_policies.types import EngineLimits, EngineShape, KVCost, LedgerView


class Refusal(StrEnum):
    """Why a ledger did not take or keep a request."""

    QUEUE_FULL = "queue_full"
    NO_ENGINE = "no_engine"
    """No engine is known, apart from those to be avoided."""
    NEVER_FITS = "never_fits"
    """Larger than the whole of every engine it is priced for."""
    DRAINING = "draining"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for room."""

    request_id: str
    """Unique for the life of the ledger; made by kvgate, never the client's."""
    tenant: str
    costs: Mapping[EngineShape, KVCost]
    """The price on each shape of engine in the pool; an engine of another shape is not considered."""
    queue_depth_max: int
    """A queue at or above this many waiting requests refuses; not applied when `seq` is given."""
    seq: int | None = None
    """The place in the order, kept when a granted request has to queue again."""
    avoid: frozenset[str] = frozenset()
    """Engine ids that are not to be chosen (they just failed this request)."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission to start, on one engine, at this cost. Ends with `release`."""

    request_id: str
    engine_id: str
    shape: EngineShape
    """The engine's, to price the request on it again when more is known."""
    cost: KVCost
    seq: int


class Ticket(Protocol):
    """A place in the queue (perhaps granted already)."""

    @property
    def request_id(self) -> str: ...

    @property
    def seq(self) -> int: ...

    @property
    def position(self) -> int:
        """How many are ahead in the queue; 0 for the next one and for a granted one."""
        ...

    @property
    def decision(self) -> Grant | Refusal | None:
        """What was decided already; None while it waits."""
        ...

    async def granted(self) -> Grant | Refusal:
        """Wait for the decision. Cancelling the wait changes nothing: the owner still owes `cancel`."""
        ...


class Ledger(Protocol):
    async def reserve(self, ask: Ask) -> Ticket | Refusal:
        """Enqueue and run the grant loop. A `Refusal` leaves nothing behind.

        Raises ValueError for a request id that is queued or holds a reservation already.
        """
        ...

    async def cancel(self, request_id: str) -> None:
        """Leave the queue; if a grant crossed it, give that back."""
        ...

    async def renew(self, request_id: str, cost: KVCost) -> None:
        """Replace the cost of a held reservation (absolute, idempotent): prefill done, a corrected prompt count.

        A larger cost is never refused: it may overdraw the engine, which only blocks grants until it drains.
        """
        ...

    async def reprice(self, request_id: str, costs: Mapping[EngineShape, KVCost]) -> None:
        """Replace the prices of a queued request, after an engine of a new shape joined the pool."""
        ...

    async def release(self, request_id: str) -> None:
        """End the reservation and give everything back."""
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

    async def close(self, reason: Refusal) -> None:
        """Stop granting and answer everyone in the queue, and every later `reserve`, with `reason`.

        Running reservations live on until released.
        """
        ...

    def view(self) -> LedgerView: ...
