"""The ledger that any number of kvgate processes share, as if they were one.

All deciding is in Redis, in scripts (`scripts`, `lua/`): check and reserve are one step there, for every process
of the pool. This shell keeps the process's own requests (`table`), tells Redis of each change after it was made
here, and hands out the decisions that come back over the stream (`wakeups`). The heartbeat (`keeper`, `restore`)
puts right whatever a call left behind, and finds out when Redis is away; then the process is `alone`.

What it promises beside the contract of `base.Ledger`:

* An admitted request costs two calls, `reserve` and `release`; everything else rides the heartbeat, forecasts too. By
  calls of their own go a prefill part of more than a quarter of the engine's bound that is given back, and a cost that
  grew by `renew`: when that returns no process decides without it. `renew_many` is for vectors, which cover what
  they grow by until the next beat.
* `reserve` returns within two timeouts of a call whatever Redis does. While Redis is away it queues here.
* Cancelling a caller at any await leaves nothing behind: the change was made here before the first await, what
  Redis may still have is withdrawn in the background, and what even that misses goes with the next beat.
* Limits, guarantees, turns and budgets are those of the pool, over all processes. The rules are those that any of
  them was told last.
* A decision can be late, it is never lost: grants that the stream did not bring are found within four beats, and
  requests of which nothing was heard for some seconds are asked for again, at their place.

`view` is at most four heartbeats old (a second): engines, queue and totals are the pool's, over all processes, as
Redis counts them; whether an engine accepts work is this process's own view of it; `pinned_by` is a request id for
own requests and a wire id for others'. While Redis is away it shows what this process holds and queues. `refresh`
makes it exact for the moment.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import anyio

from kvgate.errors import ChangeNotKept, ConfigError, LedgerCorrupt
from kvgate.ledger.alone import Alone
from kvgate.ledger.base import Ask, Grant, RateSpent, Refusal, Served, Ticket, refusal_of
from kvgate.ledger.batching import stop
from kvgate.ledger.charges import charge_of
from kvgate.ledger.connect import TROUBLE, Connection
from kvgate.ledger.door import check_cost, check_costs
from kvgate.ledger.fallback import OnFailure
from kvgate.ledger.keeper import Keeper, reassert_s
from kvgate.ledger.kept import SharedOverrides
from kvgate.ledger.restore import Restorer
from kvgate.ledger.rules import Parts
from kvgate.ledger.scripts import Granted, LeaseLost, LedgerScripts, Place, Refused, Reply
from kvgate.ledger.table import Entry, Table
from kvgate.ledger.tenants import check_rules
from kvgate.ledger.wakeups import Wakeups
from kvgate.ledger.watch import LedgerWatch, NoWatch
from kvgate.ledger.wire import least_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterable, Mapping
    from typing import Any

    from kvgate.clock import Clock
    from kvgate.ledger.charges import Charge
    from kvgate_policies.types import (
        EngineLimits,
        EngineShape,
        EngineUse,
        KVCost,
        LedgerView,
        TenantRules,
    )

T = TypeVar("T")

PREFILL_SHARE = 0.25
"""Of an engine's prefill bound: a part this large is worth a call, a smaller one waits for the beat."""
LEAVE_S_MAX = 1.0
"""For saying good-bye; otherwise the lease runs out."""

log = logging.getLogger(__name__)


class RedisLedger:
    """A `Ledger` shared over Redis. Belongs to one event loop; lives inside `async with ledger.running()`.

    `url` as in `connect`; `bypass_max`, `scan_depth` and `grants_per_call_max` as in `MemoryLedger` and the
    same in all processes of a pool. `grace_s` is how long at least nothing is granted after Redis began anew or was
    out of reach for all; left out, as long as it takes all to say what they hold. Raises ConfigError for a URL or a
    pool's name that can't be used.
    """

    def __init__(
        self,
        url: str,
        *,
        pool: str,
        clock: Clock,
        on_failure: OnFailure | str = OnFailure.LOCAL,
        lease_s: float = 5.0,
        heartbeat_s: float = 0.25,
        orphan_hold_s: float = 60.0,
        grace_s: float | None = None,
        bypass_max: int = 8,
        scan_depth: int = 4,
        grants_per_call_max: int = 16,
        watch: LedgerWatch | None = None,
    ) -> None:
        self.pid = secrets.token_hex(8)
        """This start of this process; never used again."""
        self._pool = pool
        self._clock = clock
        self._watch: LedgerWatch = watch or NoWatch()
        self._connection = Connection(url)
        bounds = {"bypass_max": bypass_max, "scan_depth": scan_depth, "grants_max": grants_per_call_max}
        grace_ms = round(1000 * (reassert_s(heartbeat_s) if grace_s is None else grace_s))
        try:
            self._scripts = LedgerScripts(
                self._connection.calls,
                pool,
                **bounds,
                lease_ms=round(lease_s * 1000),
                grace_ms=grace_ms,
                orphan_hold_ms=round(orphan_hold_s * 1000),
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self._table = Table()
        self._alone = Alone(
            self._table,
            clock,
            OnFailure(on_failure),
            bounds,
            orphan_hold_s=orphan_hold_s,
            watch=self._watch,
        )
        self._wakeups = Wakeups(
            self._scripts.stream_key,
            self.pid,
            reading=self._connection.reading,
            calls=self._connection.calls,
            deliver=self._deliver,
            on_gap=self._gap,
        )
        self._overrides = SharedOverrides(self._scripts, clock)
        self._restorer = Restorer(
            self.pid,
            pool,
            self._table,
            self._alone,
            connection=self._connection,
            scripts=self._scripts,
            wakeups=self._wakeups,
            overrides=self._overrides,
            watch=self._watch,
            clock=clock,
        )
        self._keeper = Keeper(
            self._scripts, self.pid, self._restorer, clock=clock, heartbeat_s=heartbeat_s, lease_s=lease_s
        )
        self._closed: Refusal | None = None
        self._background: set[asyncio.Task[None]] = set()

    @property
    def mode(self) -> str:
        """Who decides now: `redis`, or while it is away `local`, `closed` or `open`."""
        return self._alone.mode

    @property
    def up(self) -> bool:
        """Redis decides, and nothing that it was told is in doubt."""
        return self._keeper.up

    @property
    def live(self) -> int:
        """Processes that shared the pool at the last heartbeat; 0 before the first."""
        return self._keeper.live

    @property
    def lease_sure(self) -> bool:
        return self._alone.on or self._keeper.lease_sure

    def scrapes(self, backend: str) -> bool:
        """By the last heartbeat. While Redis is away each process does: it has to see for itself what others use."""
        return not self.up or self._keeper.elected(backend)

    # life

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[RedisLedger]:
        """Take part in the pool until the block ends.

        Raises ConfigError when this Redis can never carry a ledger. One that cannot be reached is waited for, in
        the declared mode.
        """
        loops: list[asyncio.Task[None]] = []
        try:
            await self._begin()
            loops += [asyncio.create_task(self._keeper.run()), asyncio.create_task(self._wakeups.run())]
            yield self
        finally:
            with anyio.CancelScope(shield=True):
                await stop(*loops, *self._background)
                await self._leave()
                await self._connection.aclose()

    async def _begin(self) -> None:
        try:
            await self._restorer.check()
        except TROUBLE as error:
            log.warning("Redis at %s can't be reached yet: %s", self._connection.address, error)
        await self._keeper.beat()

    async def _leave(self) -> None:
        """What still runs is not ours to strike: then the lease runs out, and the engine's gauge shows the end."""
        if self._table.held() or not self.up:
            return
        try:
            async with asyncio.timeout(LEAVE_S_MAX):
                await self._scripts.leave(self.pid)
        except (*TROUBLE, LedgerCorrupt) as error:
            log.warning("the shared ledger was not told that this process ends: %s", error)

    # requests

    async def reserve(self, ask: Ask) -> Ticket | Refusal | RateSpent:
        if self._closed is not None:
            return self._closed
        entry = self._table.add(ask, self._clock.monotonic())
        try:
            refusal = await self._ask_for(entry) if self.up else self._alone.reserve(entry)
        except BaseException:
            self._abandon(entry)
            raise
        if refusal is None:
            return entry.ticket
        if self._table.by_wire(entry.wire) is entry:
            self._table.drop(entry, refusal_of(refusal))
        return refusal

    async def cancel(self, request_id: str) -> None:
        await self._end(request_id)

    async def release(self, request_id: str, served: Served | None = None) -> None:
        """While Redis is away only this process hears what was `served`: that correction is lost."""
        await self._end(request_id, served)

    async def renew(self, request_id: str, cost: KVCost) -> None:
        check_cost(cost)
        entry = self._table.get(request_id)
        if entry is None or entry.grant is None:
            return
        entry.grant = replace(entry.grant, cost=cost)
        self._alone.renew([entry])
        if entry.counted is None or not self._is_worth_a_call(entry.grant, entry.counted):
            return
        if self.up:
            before, entry.counted = entry.counted, cost
            entry.give_back(cost)
            used = before.use_blocks - cost.use_blocks
            await self._give_back(entry.grant, before - cost, used, reservations=0)
        elif not self._alone.on:
            self._keeper.hurry()  # a beat that is under way may not have it

    async def renew_many(self, costs: Mapping[str, KVCost]) -> None:
        """Only noted down: the next heartbeat tells Redis the sums of all."""
        check_costs(costs)
        renewed: list[Entry] = []
        for request_id, cost in costs.items():
            entry = self._table.get(request_id)
            if entry is not None and entry.grant is not None:
                entry.grant = replace(entry.grant, cost=cost)
                renewed.append(entry)
        self._alone.renew(renewed)

    async def reprice(self, request_id: str, costs: Mapping[EngineShape, KVCost]) -> None:
        check_costs(costs)
        entry = self._table.get(request_id)
        if entry is None or entry.grant is not None:
            return
        entry.ask = replace(entry.ask, costs=dict(costs))
        self._alone.reprice(entry)
        if self.up:
            await self._call("reprice", self._scripts.reprice(self.pid, entry.wire, entry.ask.costs))
        else:
            entry.repriced = True

    # tenants

    async def set_tenants(self, rules: Mapping[str, TenantRules]) -> None:
        """Raises ValueError for impossible rules and names. While Redis is away they hold here, and are told when it
        is back.
        """
        check_rules(rules)
        self._restorer.rules = Parts.of(rules)
        self._alone.set_tenants(rules)
        if self.up:
            await self._call("set_tenants", self._scripts.set_tenants(self._restorer.rules))

    async def put_override(self, name: str, text: str | None, ttl_s: float) -> None:
        """Raises ChangeNotKept while Redis is away, and ValueError as the ledger in memory does."""
        self._overrides.check(name, text, ttl_s)
        address = self._connection.address
        if not self.up:
            raise ChangeNotKept(f"Redis at {address} is away: {name} was not changed")
        try:
            await self._overrides.put(name, text, ttl_s)
        except TROUBLE as error:
            self._keeper.trouble(error)
            raise ChangeNotKept(f"Redis at {address} did not answer: {name} may be changed or not") from error

    async def overrides(self) -> Mapping[str, tuple[str, float]]:
        """While Redis is away, those that were known last, as long as they hold."""
        found = await self._call("overrides", self._overrides.read()) if self.up else None
        return self._overrides.seen() if found is None else found

    # engines

    async def observe(self, limits: EngineLimits) -> None:
        self._table.limits[limits.engine_id] = limits
        self._table.forgotten.discard(limits.engine_id)
        self._alone.observe(limits)
        if self.up:
            await self._call("observe", self._scripts.observe(self.pid, limits))

    async def forget(self, engine_id: str) -> None:
        if self._table.limits.pop(engine_id, None) is not None:
            self._table.forgotten.add(engine_id)
        self._table.strike(engine_id)
        self._alone.forget(engine_id)
        if self.up:
            reply = await self._call("forget", self._scripts.forget(self.pid, engine_id))
            if reply is not None and engine_id not in self._table.limits:
                self._table.forgotten.discard(engine_id)

    async def void(self, engine_id: str) -> None:
        self._table.strike(engine_id)
        self._alone.void(engine_id)
        if self.up:
            await self._call("void", self._scripts.void(self.pid, engine_id))

    async def settle(self, engine_id: str, blocks_in_use: int, seqs: int | None = None) -> KVCost | None:
        """By it sums of processes that are gone are let go, and a process that is alone sees what the others use."""
        if engine_id not in self._table.limits:
            return None
        self._alone.gauge(engine_id, blocks_in_use, seqs)
        if not self.up:
            return None
        answer = await self._call("settle", self._scripts.settle(engine_id, blocks_in_use, seqs))
        return None if answer is None else answer[1]

    # the whole

    async def close(self, reason: Refusal) -> None:
        self._closed = reason
        waiting = self._table.waiting()
        for entry in waiting:
            self._table.drop(entry, reason)
            self._alone.finish(entry)
        await asyncio.gather(*(self._withdraw(entry) for entry in waiting))

    def view(self) -> LedgerView:
        seen = self._restorer.seen
        engines = tuple(self._as_seen_here(seen.engines))
        return self._alone.view() or replace(seen, engines=engines, processes=max(self.live, 1))

    async def refresh(self) -> bool:
        """Bring `view` and every ticket up to date: for tests, and for who needs to be exact.

        False when that could not be done, because Redis is away or was just now.
        """
        await asyncio.gather(*self._background, return_exceptions=True)
        if not await self._keeper.beat() or not self.up:
            return False
        try:
            reply = await self._scripts.pump()
            while reply.unfinished and not reply.grace:
                reply = await self._scripts.pump()
            await self._wakeups.catch_up()
            await asyncio.gather(*self._background, return_exceptions=True)
            await self._restorer.look()
        except TROUBLE as error:
            self._keeper.trouble(error)
        return self.up

    def __repr__(self) -> str:
        return f"<RedisLedger {self._pool} {self.mode}: {self._table!r}>"

    def _as_seen_here(self, uses: Iterable[EngineUse]) -> Iterable[EngineUse]:
        for use in uses:
            own = self._table.limits.get(use.limits.engine_id)
            pinner = None if use.pinned_by is None else self._table.by_wire(use.pinned_by)
            yield replace(
                use,
                limits=use.limits if own is None else replace(use.limits, accepting=own.accepting),
                pinned_by=use.pinned_by if pinner is None else pinner.request_id,
            )

    # the ways of one request

    async def _ask_for(self, entry: Entry) -> Refusal | RateSpent | None:
        """Ask Redis for it. None: it is queued, there or (if Redis was away just now) only here."""
        entry.asked_s, entry.unsure = self._clock.monotonic(), True
        answer = await self._call("reserve", self._scripts.reserve(self.pid, entry.ask, ack=self._table.ack))
        if answer is None:
            return None
        reply, found = answer
        if not isinstance(found, Place):
            if reply.epoch != self._keeper.epoch:
                return None  # of an epoch that knows nothing yet: it will be asked for again
            entry.unsure = False
            return found
        entry.unsure = False
        if entry.grant is None:
            self._table.placed(entry, found)
        return None

    async def _end(self, request_id: str, served: Served | None = None) -> None:
        """`cancel` and `release` are one: whichever the owner calls, nothing of the request stays behind."""
        entry = self._table.get(request_id)
        if entry is not None:
            self._table.drop(entry)
            self._alone.finish(entry, served)
            await self._tell_end(entry, served)

    async def _tell_end(self, entry: Entry, served: Served | None = None) -> None:
        if entry.grant is None:
            await self._withdraw(entry)
        elif self.up and entry.counted is not None:
            charge = None if served is None else charge_of(entry.grant, served)
            counted = entry.counted
            await self._give_back(entry.grant, counted, counted.use_blocks, charge=charge)
        else:
            self._table.ended_untold(entry)

    async def _give_back(
        self,
        grant: Grant,
        cost: KVCost,
        use_blocks: int,
        *,
        reservations: int = 1,
        charge: Charge | None = None,
    ) -> None:
        call = self._scripts.release(
            self.pid,
            self._table.next_rel(),
            grant.engine_id,
            grant.tenant,
            cost,
            reservations=reservations,
            use_blocks=use_blocks,
            charge=charge,
        )
        await self._call("release", call)

    async def _withdraw(self, entry: Entry) -> None:
        """Take one out of the queue; if a grant crossed it, fetch that, and so give it back."""
        if entry.asked_s is None:
            return
        if not self.up:
            self._table.doubt(entry.wire)
            return
        answer = await self._call("cancel", self._scripts.cancel(self.pid, entry.wire))
        if answer is None:
            self._table.doubt(entry.wire)
        elif not answer[1]:
            await self._call("catch_up", self._wakeups.catch_up())

    def _abandon(self, entry: Entry) -> None:
        """Whoever reserved was cancelled half-way and will not come back for it."""
        if self._table.by_wire(entry.wire) is entry:
            self._table.drop(entry)
            self._alone.finish(entry)
            self._in_background(self._tell_end(entry))

    def _is_worth_a_call(self, grant: Grant, counted: KVCost) -> bool:
        """Whether others may not do without knowing: there is more in some part, or at some point of the grid; or a
        large part of the engine's prefill bound is free.
        """
        if least_of(grant.cost, counted) != grant.cost:
            return True
        limits = self._table.limits.get(grant.engine_id)
        freed = counted.prefill_tokens - grant.cost.prefill_tokens
        return limits is not None and freed > limits.prefill_tokens * PREFILL_SHARE

    # decisions that come in

    def _deliver(self, entry: Granted | Refused) -> None:
        """From the stream. A grant that cannot be taken is given back by the next beat, which comes now.

        That is one that nobody here waits for; one decided on what is no longer so; and one read when the lease
        may have run out (this process was stopped, or cut off): its room may be another's by now. Who waits for
        it queues again, at its place.
        """
        own = self._table.by_wire(entry.request_id)
        if isinstance(entry, Refused):
            if own is not None and own.grant is None:
                self._table.drop(own, entry.refusal)
                self._alone.finish(own)
            return
        is_new = self._table.read(entry)
        if own is None or own.grant is not None:
            self._stray()
        elif not (is_new and self._keeper.lease_sure and self._still_holds(entry, own)):
            self._keeper.doubt()
            self._stray()
        else:
            own.unsure = False
            self._table.placed(own, Place(entry.seq, entry.rank))
            self._table.hold(own, own.granted(entry), counted=entry.cost)
            self._alone.finish(own)

    def _still_holds(self, granted: Granted, own: Entry) -> bool:
        return not own.repriced and granted.engine_id in self._table.limits

    def _stray(self) -> None:
        self._watch.happened("stray_grant")
        self._keeper.hurry()

    def _gap(self) -> None:
        self._watch.happened("stream_gap")
        self._keeper.doubt()
        self._keeper.hurry()

    # calls

    async def _call(self, verb: str, call: Awaitable[T]) -> T | None:
        """Make a call; None when Redis did not take it, which the keeper then looks into."""
        started_s = self._clock.monotonic()
        answer: T | None = None
        try:
            answer = await call
        except LeaseLost:
            self._keeper.lost()
        except LedgerCorrupt as error:
            log.error("%s; the next heartbeat puts it right", error)  # noqa: TRY400  # its place is of no interest
            self._keeper.hurry()
        except TROUBLE as error:
            self._keeper.trouble(error)
        finally:
            self._watch.called(verb, self._clock.monotonic() - started_s, ok=answer is not None)
        reply = answer[0] if isinstance(answer, tuple) else answer
        if isinstance(reply, Reply):
            self._keeper.note(reply)
        return answer

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("work of the ledger in the background failed", exc_info=task.exception())


__all__ = ["LedgerWatch", "OnFailure", "RedisLedger"]
