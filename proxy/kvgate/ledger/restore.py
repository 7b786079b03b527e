"""Redis is told what this process has: with every heartbeat, and anew after anything that it may have missed.

A heartbeat carries the sums of the table. What sums cannot carry is told anew after an outage, a failover, a
restart of Redis, a lost lease or a gap in the stream: the engines this process knows, and everyone that waits,
each at the place it had. Asking again for one that is queued, or whose grant is on its way, changes nothing
there, so all of it may be told as often as there is doubt.

A heartbeat is one call, and withdraws what Redis may have queued although nobody waits for it here, if there is
any such. What can wait for a second is done with every fourth, in a *round*: a look at the pool, at the stream in
case the connection that reads it is dead, and the *patrol*, which asks again for those of whom nothing was heard for
`PATROL_S`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kvgate.ledger.base import refusal_of
from kvgate.ledger.keeper import Claim
from kvgate.ledger.scripts import LeaseLost, Place
from kvgate_policies.types import LedgerView

if TYPE_CHECKING:
    from kvgate.clock import Clock
    from kvgate.ledger.alone import Alone
    from kvgate.ledger.connect import Connection
    from kvgate.ledger.kept import SharedOverrides
    from kvgate.ledger.rules import Parts
    from kvgate.ledger.scripts import BeatReply, LedgerScripts
    from kvgate.ledger.table import Entry, Table
    from kvgate.ledger.wakeups import Wakeups
    from kvgate.ledger.watch import LedgerWatch

PATROL_S = 5.0
"""After which one that waits is asked for again, in case Redis lost it without a sign."""
PATROL_MAX = 128
"""Asked for again in one round: a queue of 640 is gone through in `PATROL_S`."""
BEATS_PER_ROUND = 4
"""By default a round is made every second."""
ROUNDS_MAX = 64
"""Of telling what came while the last round was under way."""

log = logging.getLogger(__name__)


class Restorer:
    """The `Host` of a keeper. What goes wrong in a call is raised, and counts as a failure of the beat."""

    def __init__(
        self,
        pid: str,
        pool: str,
        table: Table,
        alone: Alone,
        *,
        connection: Connection,
        scripts: LedgerScripts,
        wakeups: Wakeups,
        overrides: SharedOverrides,
        watch: LedgerWatch,
        clock: Clock,
    ) -> None:
        self._pid = pid
        self._pool = pool
        self._table = table
        self._alone = alone
        self._connection = connection
        self._scripts = scripts
        self._wakeups = wakeups
        self._overrides = overrides
        self._watch = watch
        self._clock = clock
        self._checked = False
        self._epoch = ""
        self._beats = 0
        self.rules: Parts | None = None
        """Of the tenants, as this process was told last; None before."""
        self.seen = LedgerView(mode="redis")
        """The pool at the last heartbeat."""

    async def check(self) -> None:
        """Once: whether this Redis can carry a ledger. Raises ConfigError when it can't."""
        if not self._checked:
            name = await self._connection.check(self._pool)
            self._checked = True
            log.info("pool %s is shared over %s at %s", self._pool, name, self._connection.address)

    async def look(self) -> None:
        self.seen = await self._scripts.view()
        self._table.queued_everywhere = {use.name: use.queued for use in self.seen.tenants}

    # the heartbeat

    def claim(self) -> Claim:
        closed = [limits.engine_id for limits in self._table.limits.values() if not limits.accepting]
        return Claim(self._table.ack, self._table.rel, self._table.claim(), closed)

    async def prepare(self, *, up: bool) -> None:
        await self.check()
        self._beats += 1
        if not up:
            await self._wakeups.check_order()
        if not up or self._is_round:
            await self._wakeups.catch_up()

    @property
    def _is_round(self) -> bool:
        return self._beats % BEATS_PER_ROUND == 0

    async def beaten(self, reply: BeatReply, *, up: bool) -> None:
        self._table.claim_taken()
        self._table.redis_ahead_s = reply.now_ms / 1000 - self._clock.monotonic()
        if reply.epoch != self._epoch:
            self._overrides.lost |= bool(self._epoch)
            self._epoch = reply.epoch
            self._wakeups.start_at(reply.now_ms)
        if reply.lease_new:
            self._table.ack = max(self._table.ack, reply.gseq)  # what was granted before went with the lease
        if up:
            await self._withdraw_doubtful()
        if up and self._is_round:
            await self._patrol()
            await self.look()

    async def _withdraw_doubtful(self) -> None:
        wires = self._table.take_doubtful()
        await asyncio.gather(*(self._scripts.cancel(self._pid, wire) for wire in wires))

    async def _patrol(self) -> None:
        before_s = self._clock.monotonic() - PATROL_S
        due = [entry for entry in self._table.waiting() if entry.asked_s is None or entry.asked_s < before_s]
        if not due:
            return
        missing = set(await self._scripts.missing(self._pid, [entry.wire for entry in due[:PATROL_MAX]]))
        for entry in due[:PATROL_MAX]:
            entry.asked_s = self._clock.monotonic()
        await asyncio.gather(*(self._tell(entry) for entry in due[:PATROL_MAX] if entry.wire in missing))

    # after doubt

    async def restore(self) -> None:
        """Engines and rules first, then everyone that waits, until nobody is left who came meanwhile."""
        await self._tell_engines()
        await self._tell_rules()
        await self._withdraw_doubtful()
        told: set[str] = set()
        for _ in range(ROUNDS_MAX):
            left = [entry for entry in self._table.waiting() if entry.wire not in told]
            if not left:
                break
            told.update(entry.wire for entry in left)
            await asyncio.gather(*(self._tell(entry) for entry in left))
        await self.look()

    async def _tell_engines(self) -> None:
        limits = list(self._table.limits.values())
        await asyncio.gather(*(self._scripts.observe(self._pid, each) for each in limits))
        for engine_id in list(self._table.forgotten):
            await self._scripts.forget(self._pid, engine_id)
            self._table.forgotten.discard(engine_id)

    async def _tell_rules(self) -> None:
        if self.rules is not None:
            await self._scripts.set_tenants(self.rules)
        await self._overrides.tell_again()

    async def _tell(self, entry: Entry) -> None:
        """Ask for one that waits, at its place; a refusal is for the one who waits."""
        now_s = self._clock.monotonic()
        entry.asked_s, entry.unsure = now_s, True
        reply, found = await self._scripts.reserve(
            self._pid, entry.again(now_s), ack=self._table.ack, admitted=True
        )
        if reply.epoch != self._epoch:
            raise LeaseLost(self._pid, reply.epoch)
        entry.unsure = False
        if self._table.by_wire(entry.wire) is not entry:
            if isinstance(found, Place):
                self._table.doubt(entry.wire)
        elif not isinstance(found, Place):
            if entry.grant is None:
                self._table.drop(entry, refusal_of(found))
        elif entry.grant is None:
            self._table.placed(entry, found)
            await self._tell_price(entry)

    async def _tell_price(self, entry: Entry) -> None:
        """Asking again for one that is queued leaves its prices as they were."""
        if entry.repriced:
            await self._scripts.reprice(self._pid, entry.wire, entry.ask.costs)
            entry.repriced = False

    # who decides

    def went_down(self, why: str, live: int, leased_until_s: float) -> None:
        self._alone.begin(live, leased_until_s)
        log.warning(
            "Redis at %s is away (%s): the ledger's mode is %s",
            self._connection.address,
            why,
            self._alone.mode,
        )
        self._watch.happened(f"mode_{self._alone.mode}")

    def came_back(self) -> None:
        if self._alone.on:
            self._alone.end()
            log.warning("Redis at %s answers again: the ledger's mode is redis", self._connection.address)
            self._watch.happened("mode_redis")

    def happened(self, event: str) -> None:
        self._watch.happened(event)
