"""Who holds what on which engine: sums, reservations and pins.

The book adds and subtracts, it decides nothing. It promises that the sum of an engine is at every moment
exactly the sum of its reservations, part by part, and never below zero; whatever would break that raises
`LedgerCorrupt` *before* anything changed. It keeps `Tenants` at the sums of theirs, and at the size of the pool.

Engines are kept as the frozen `EngineUse` values that the placement rules read, replaced on every change, so
that a snapshot costs one tuple.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvgate.errors import LedgerCorrupt
from kvgate.ledger.ceilings import Ceilings
from kvgate.ledger.walk import lowest
from kvgate_policies.fairness import PoolSize
from kvgate_policies.types import ZERO_COST, EngineLimits, EngineUse, KVCost

if TYPE_CHECKING:
    from kvgate.ledger.base import Grant
    from kvgate.ledger.tenants import Tenants


class Book:
    """Sums, reservations and pins of all engines of a pool. Not safe for threads; nothing here waits."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._uses: dict[str, EngineUse] = {}
        self._grants: dict[str, Grant] = {}
        self._ids_on: dict[str, set[str]] = {}
        self._pins: dict[str, str] = {}
        """Request id → the engine kept free for it; each engine has at most one."""
        self._order: dict[str, int] = {}
        self._apart: set[str] = set()
        """Engines that tenants have no share of."""
        self._freed: dict[str, int] = {}
        """Engine id → the stamp of the last change that made room there, the latest last."""
        self.stamp = 0
        """Counts the changes that made room somewhere."""
        self.known = Ceilings.of(())
        """What the engines hold at most, accepting or not."""
        self.accepting = Ceilings.of(())
        """What those that accept work hold at most."""

    def uses(self) -> tuple[EngineUse, ...]:
        return tuple(self._uses.values())

    def reserved_on(self, engine_id: str) -> KVCost | None:
        use = self._uses.get(engine_id)
        return None if use is None else use.reserved

    def freed_since(self, stamp: int) -> tuple[EngineUse, ...]:
        """The engines on which room was made after `stamp`, in their order.

        What did not fit an engine at `stamp` cannot fit it now unless it is one of these.
        """
        if stamp < 0:
            return self.uses()
        freed: list[str] = []
        for engine_id, when in reversed(self._freed.items()):
            if when <= stamp:
                break
            freed.append(engine_id)
        freed.sort(key=self._order.__getitem__)
        return tuple(self._uses[engine_id] for engine_id in freed)

    def use(self, engine_id: str) -> EngineUse | None:
        return self._uses.get(engine_id)

    def grant_of(self, request_id: str) -> Grant | None:
        """The reservation a request holds, with its present cost."""
        return self._grants.get(request_id)

    @property
    def reservations(self) -> int:
        return len(self._grants)

    # engines

    def set_limits(self, limits: EngineLimits, *, apart: bool = False) -> bool:
        """Add an engine or replace its limits; False when nothing changed. `apart`: tenants have no share of it."""
        use = self._uses.get(limits.engine_id)
        if apart:
            self._apart.add(limits.engine_id)
        if use is not None and use.limits == limits:
            return False
        self._uses[limits.engine_id] = (
            EngineUse(limits, ZERO_COST, 0) if use is None else replace(use, limits=limits)
        )
        self._ids_on.setdefault(limits.engine_id, set())
        if use is None:
            self._order[limits.engine_id] = 1 + max(self._order.values(), default=0)
        self._made_room(limits.engine_id)
        if use is None or replace(use.limits, blocks_usable=limits.blocks_usable) != limits:
            self._measure()  # how much may be filled changes with every reading, and no share by it
        return True

    def void(self, engine_id: str) -> int:
        """Strike every reservation of an engine; returns how many. A pin on it stays."""
        ids = self._ids_on.get(engine_id)
        if not ids:
            return 0
        struck = len(ids)
        self._uses[engine_id] = replace(self._uses[engine_id], reserved=ZERO_COST, reservations=0)
        for request_id in ids:
            grant = self._grants.pop(request_id)
            self._tenants.hold(grant.tenant, -grant.cost.use_blocks, -1)
        ids.clear()
        self._made_room(engine_id)
        return struck

    def remove(self, engine_id: str) -> int:
        """Strike an engine with all its reservations and its pin; returns how many reservations."""
        struck = self.void(engine_id)
        use = self._uses.pop(engine_id, None)
        for column in (self._ids_on, self._order, self._freed):
            column.pop(engine_id, None)
        self._apart.discard(engine_id)
        if use is not None and use.pinned_by is not None:
            del self._pins[use.pinned_by]
        self._measure()
        return struck

    # reservations

    def hold(self, grant: Grant) -> None:
        """Enter a new reservation. Raises LedgerCorrupt when the request holds one already."""
        if grant.request_id in self._grants:
            raise LedgerCorrupt(f"request {grant.request_id} was granted twice")
        self._add(grant.engine_id, grant.cost, reservations=1)
        self._grants[grant.request_id] = grant
        self._ids_on[grant.engine_id].add(grant.request_id)
        self._tenants.hold(grant.tenant, grant.cost.use_blocks, 1)

    def change(self, request_id: str, cost: KVCost) -> bool:
        """Replace the cost of a reservation; True when it changed, down or up: both can let somebody start."""
        grant = self._grants.get(request_id)
        if grant is None or grant.cost == cost:
            return False
        delta = cost - grant.cost
        self._add(grant.engine_id, delta)
        self._grants[request_id] = replace(grant, cost=cost)
        self._tenants.hold(grant.tenant, cost.use_blocks - grant.cost.use_blocks, 0)
        return True

    def drop(self, request_id: str) -> Grant | None:
        """End a reservation and return it; None when the request holds none."""
        grant = self._grants.get(request_id)
        if grant is None:
            return None
        self._add(grant.engine_id, ZERO_COST - grant.cost, reservations=-1)
        del self._grants[request_id]
        self._ids_on[grant.engine_id].discard(request_id)
        self._tenants.hold(grant.tenant, -grant.cost.use_blocks, -1)
        return grant

    # pins

    @property
    def pins(self) -> int:
        return len(self._pins)

    def pinners(self) -> tuple[str, ...]:
        return tuple(self._pins)

    def pinned_to(self, request_id: str) -> str | None:
        return self._pins.get(request_id)

    def pin(self, engine_id: str, request_id: str) -> None:
        """Keep an engine free for a request, in place of whoever had it pinned."""
        use = self._uses[engine_id]
        if use.pinned_by is not None:
            del self._pins[use.pinned_by]
            self._made_room(engine_id)
        self._uses[engine_id] = replace(use, pinned_by=request_id)
        self._pins[request_id] = engine_id

    def unpin(self, request_id: str) -> bool:
        """Let go of the engine pinned by a request; False when it has none."""
        engine_id = self._pins.pop(request_id, None)
        if engine_id is None:
            return False
        self._uses[engine_id] = replace(self._uses[engine_id], pinned_by=None)
        self._made_room(engine_id)
        return True

    def _measure(self) -> None:
        everyone = [use.limits for use in self._uses.values()]
        self.known = Ceilings.of(everyone)
        self.accepting = Ceilings.of(limits for limits in everyone if limits.accepting)
        block_tokens_min = min((limits.shape.block_size for limits in everyone), default=1)
        blocks = sum(limits.blocks for limits in everyone if limits.engine_id not in self._apart)
        self._tenants.resize(PoolSize(blocks, block_tokens_min))

    def _add(self, engine_id: str, delta: KVCost, reservations: int = 0) -> None:
        use = self._uses[engine_id]
        reserved = use.reserved + delta
        count = use.reservations + reservations
        if lowest(reserved) < 0 or count < 0 or (count == 0 and reserved != ZERO_COST):
            raise LedgerCorrupt(
                f"engine {engine_id}: {use.reserved} of {use.reservations} reservations, changed by {delta}, "
                f"would be {reserved} of {count}; nothing was changed"
            )
        self._uses[engine_id] = EngineUse(use.limits, reserved, count, use.pinned_by)
        if lowest(delta) < 0 or reservations < 0:
            self._made_room(engine_id)

    def _made_room(self, engine_id: str) -> None:
        self.stamp += 1
        self._freed.pop(engine_id, None)
        self._freed[engine_id] = self.stamp

    def __repr__(self) -> str:
        return f"<Book {len(self._uses)} engines, {len(self._grants)} reservations, {len(self._pins)} pins>"
