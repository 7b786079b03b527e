"""The verbs of the shared ledger, each one script call: atomic, bounded, and safe to send again.

All deciding happens in the server (`lua/`); this module checks and encodes what goes there and decodes what
comes back. It keeps nothing but the texts, waits for nothing but the answer, and never tries again by itself,
apart from sending a script whole that the server does not know (after a restart or a failover).

What a process owes:

* `beat` before anything else, and then at least three times within `lease_ms`. Whoever has no lease gets
  `LeaseLost` from the verbs that need one.
* Its own table is the truth. It applies a release or a change there first, then calls `release` with the next
  number `rel`; a beat carries the highest `rel` that its sums already contain. So calls that arrive late, twice
  or not at all do no harm: the next beat puts the sums right. Calls should leave in the order they were made. Only
  what a lost release would have corrected of its tenant's charges is lost with it.
* A release gives back the cost that the server counts for the request: that of the grant, of the last beat or of the
  last release of a part. What changed since is told by the next beat, so that forecasts cost no calls; or at once, by
  the release of a part, which is negative where the cost grew.
* It counts only what the server knows: a reservation that was made without the server (while it was away) must
  be in a beat before it is released here.
* Grants and late refusals come over the stream `stream_key` only, also those decided within the `reserve`
  (`read_entry`). `ack` of a beat is the `gseq` of the last grant read. Grants above it are counted beside the
  sums; a grant that was read and is not in the sums is thereby given back.
* When `epoch` of an answer changes, the server began with nothing: read the stream from its beginning, beat,
  observe every engine, set the rules of the tenants, and reserve again whatever waits, at its old place.
  `BeatReply.lease_new` asks for the same (but for the stream): the process was taken for gone and its waiters with
  it. So does a beat whose answer was lost, since it may have said so. A grant that was on its way then is still
  counted, unless its engine showed its blocks free meanwhile; a process that reads and keeps it counts it with its
  next beat.
* `unfinished`: there is more to decide than one call does; send `pump` soon.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from redis.exceptions import NoScriptError, ResponseError

from kvgate.errors import KvgateError, LedgerCorrupt
from kvgate.ledger import keys, wire
from kvgate.ledger.answers import (
    BeatReply,
    Granted,
    Holding,
    Inspection,
    Orphan,
    Refused,
    Reply,
    Sums,
    Waiting,
    holding_of,
    orphan_of,
    read_entry,
    sums_of,
    tenant_use_of,
    text_of,
    totals_of,
    use_of,
    waiting_of,
)
from kvgate.ledger.base import Ask, RateSpent, Refusal
from kvgate.ledger.charges import Charge
from kvgate.ledger.lua import read_scripts
from kvgate.ledger.rules import Parts
from kvgate.ledger.walk import lowest
from kvgate_policies.fairness import LEVELS
from kvgate_policies.types import (
    TENANTS_SHOWN_MAX,
    EngineLimits,
    EngineShape,
    KVCost,
    LedgerView,
    PriorityClass,
)


class Client(Protocol):
    """What is used of `redis.asyncio.Redis` and `RedisCluster`."""

    def execute_command(self, *args: Any) -> Awaitable[Any]: ...


class LeaseLost(KvgateError):
    """The process has no lease: it ran out, or the server began anew, or it never had one. Beat, then try again."""

    def __init__(self, pid: str, epoch: str) -> None:
        super().__init__(f"process {pid} has no lease in epoch {epoch}: beat, then try again")
        self.epoch = epoch


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands in its flow; kept when it has to queue again."""

    seq: int
    rank: int


class LedgerScripts:
    """The verbs. Not bound to an event loop; any number of calls may be under way.

    `bypass_max`, `scan_depth` and `grants_max` are the bounds of the grant loop, as in `MemoryLedger`.
    `grace_ms` is how long at least nothing is granted in a new epoch, and after nobody was heard for as long: until
    all could say what they hold (`keeper.reassert_s`); `lease_ms` at most, while some that were known are missing.
    `orphan_hold_ms` is the longest that the sums of a process that is gone are counted; `settle_gap_ms` is the
    least time between two readings of an engine's gauge that are taken as two: half the usual second between
    scrapes, since each process reads for itself.

    All raise `LeaseLost` where they say so, ValueError for what must not be sent, LedgerCorrupt when the server
    refused a change that would take a sum below zero (the next beat puts it right), and the client's own
    exceptions when the server cannot be asked.
    """

    def __init__(
        self,
        client: Client,
        pool: str,
        *,
        bypass_max: int = 8,
        scan_depth: int = 4,
        grants_max: int = 16,
        lease_ms: int = 5000,
        grace_ms: int = 750,
        orphan_hold_ms: int = 60_000,
        settle_gap_ms: int = 500,
    ) -> None:
        if min(bypass_max, grace_ms, settle_gap_ms) < 0 or min(scan_depth, grants_max) < 1:
            raise ValueError("scan_depth and grants_max are 1 or more, the other bounds 0 or more")
        if min(lease_ms, orphan_hold_ms) < 1:
            raise ValueError("lease_ms and orphan_hold_ms are 1 or more")
        self._client = client
        self._keys = keys.keys_of(pool)
        self.stream_key = keys.stream_key(pool)
        """Where grants and late refusals are pushed; `read_entry` reads an entry."""
        self._token = secrets.token_hex(8)
        self._scripts = read_scripts(
            {
                "bypass_max": bypass_max,
                "scan_depth": scan_depth,
                "grants_max": grants_max,
                "lease_ms": lease_ms,
                "grace_ms": grace_ms,
                "orphan_hold_ms": orphan_hold_ms,
                "settle_gap_ms": settle_gap_ms,
            }
        )

    # the process

    async def beat(
        self,
        pid: str,
        *,
        ack: int,
        rel: int,
        sums: Mapping[tuple[str, str], Sums],
        closed: Collection[str],
        known: int = 0,
    ) -> BeatReply:
        """Take or renew the lease, and say what the process holds and which engines it does not use now.

        `known` is how many processes it last knew of: a grace waits for as many, for a lease at most.

        Sums are by engine and tenant, and absolute: what is not named has none. A beat that is older than what the
        server knows of the process (by `ack` or `rel`) renews the lease and sets `closed`, no more.
        """
        words: list[str | int] = [ack, rel, known, *_counted(closed)]
        for (engine_id, tenant), held in sums.items():
            words += [_name(engine_id), _name(tenant), *wire.parts_of(held.cost), held.reservations]
            words += [held.used_blocks, wire.forecast_text(held.cost)]
            wire.check_numbers(held.reservations, held.used_blocks)
        wire.check_numbers(ack, rel, known)
        reply, rest = await self._ask("beat", pid, *words)
        return BeatReply(
            reply.epoch,
            reply.now_ms,
            reply.unfinished,
            reply.grace,
            int(rest[0]),
            bool(rest[1]),
            int(rest[2]),
            int(rest[3]),
        )

    async def leave(self, pid: str) -> Reply:
        """The process ends in good order: its waiters, its sums and its lease go at once."""
        return (await self._ask("leave", pid))[0]

    # requests

    async def reserve(
        self, pid: str, ask: Ask, *, ack: int | None = None, admitted: bool = False
    ) -> tuple[Reply, Place | Refusal | RateSpent]:
        """Enqueue and run the grant loop; the place in the order, or why not.

        Sent again for one that is queued or was granted, it answers the same place and changes nothing. `ack`
        (as in a beat) tells the one case apart that looks alike: a grant up to `ack` was read, so this is the
        request's next turn. Without `ack` an ask with a `seq` is always taken as a next turn. `admitted`: it was let
        in by its process while Redis was away, and is charged to its tenant's budgets, but not refused for them, nor
        for the depth of the queue.

        Raises LeaseLost, and ValueError for a negative number or an id that another process has queued.
        """
        depth = min(max(ask.queue_depth_max, 0), wire.INTEGER_MAX)
        wire.check_numbers(ask.work, ask.tokens, ask.rank, ask.rank_in_ms or 0, ask.seq or 0)
        words = (_name(ask.request_id), _or_none(ask.seq), depth, _or_none(ack))
        charged = (_name(ask.tenant), class_number(ask.priority), ask.work, ask.tokens)
        order = (_or_none(ask.rank_in_ms), ask.rank, int(ask.force), int(admitted))
        wishes = (wire.z_text(ask.z), *_counted(ask.avoid), *_counted(ask.prefer))
        reply, rest = await self._ask("reserve", pid, *words, *charged, *order, *wishes, *_prices(ask.costs))
        return reply, _answer(ask, [text_of(word) for word in rest])

    async def release(
        self,
        pid: str,
        rel: int,
        engine_id: str,
        tenant: str,
        cost: KVCost,
        *,
        reservations: int = 1,
        use_blocks: int | None = None,
        charge: Charge | None = None,
    ) -> Reply:
        """Give back what a reservation has; with `reservations=0`, the part by which its cost became smaller.

        That part may be negative where the cost grew; by how much its `use_blocks` became smaller is said then, where
        forecasts are involved. `charge` corrects what the tenant was charged at the grant. `rel` counts the calls of a
        process from 1; one that is not above the last known is a repetition and changes nothing. Raises LeaseLost.
        """
        if reservations not in {0, 1} or (reservations and lowest(cost) < 0):
            raise ValueError(f"not a reservation to give back: {cost} of {reservations}")
        charge = charge or _NO_CHARGE
        wire.check_numbers(rel, abs(charge.work), abs(charge.work_of_turn), abs(charge.tokens))
        used = cost.use_blocks if use_blocks is None else use_blocks
        parts = (cost.blocks, cost.seqs, cost.prefill_tokens, reservations, used, wire.forecast_text(cost))
        words = (class_number(charge.priority), charge.work, charge.work_of_turn, charge.tokens)
        return (await self._ask("release", pid, rel, _name(engine_id), _name(tenant), *parts, *words))[0]

    async def cancel(self, pid: str, rid: str) -> tuple[Reply, bool]:
        """Leave the queue. False: it is not there; if a grant for it is on its way, the process owes its end.

        That end is a `release`, or a beat with the grant's `gseq` as `ack` whose sums do not contain it.
        """
        reply, rest = await self._ask("cancel", pid, _name(rid))
        return reply, bool(rest[0])

    async def missing(self, pid: str, rids: Sequence[str]) -> list[str]:
        """Those of this process's requests that are not queued: granted, refused, or lost. One call for all."""
        _, rest = await self._ask("missing", pid, *(_name(rid) for rid in rids))
        return [rid for rid, gone in zip(rids, rest[0], strict=True) if gone]

    async def reprice(self, pid: str, rid: str, costs: Mapping[EngineShape, KVCost]) -> Reply:
        """Replace the prices of one that is queued; a no-op for any other. May end its wait (`Refused`)."""
        return (await self._ask("reprice", pid, _name(rid), *_prices(costs)))[0]

    # engines

    async def observe(self, pid: str, limits: EngineLimits) -> Reply:
        """Add an engine, or change what it holds (for all) or whether this process uses it now. Raises LeaseLost."""
        sizes = (limits.blocks, limits.seqs, limits.prefill_tokens)
        wire.check_numbers(*sizes, limits.blocks_usable or 0)
        words = (_name(limits.engine_id), keys.shape_key(limits.shape), *sizes, int(limits.accepting))
        usable = _or_none(limits.blocks_usable)
        return (await self._ask("observe", pid, *words, usable))[0]

    async def forget(self, pid: str, engine_id: str) -> Reply:
        """The process no longer knows the engine, and its sums there are void.

        The engine goes when no live process knows it and none has sums there; orphaned sums go with it.
        """
        return (await self._ask("forget", pid, _name(engine_id)))[0]

    async def void(self, pid: str, engine_id: str) -> Reply:
        """The engine restarted: this process's sums there and all orphaned ones are void."""
        return (await self._ask("void", pid, _name(engine_id)))[0]

    async def settle(
        self, engine_id: str, blocks_in_use: int, seqs: int | None = None
    ) -> tuple[Reply, KVCost | None]:
        """What the engine's gauges show: blocks in use, sequences there. Returns what is reserved there then; None
        for an engine that nobody knows.

        All orphaned sums of the engine go when two readings in a row show next to nothing beyond the live ones;
        never a part of them, which a process that is only cut off would fill up again.
        """
        wire.check_numbers(blocks_in_use, seqs or 0)
        told = [] if seqs is None else [seqs]
        reply, sums = await self._ask("settle", "", _name(engine_id), blocks_in_use, *told)
        return reply, sums_of(sums).cost if sums else None

    # tenants

    async def set_tenants(self, parts: Parts) -> Reply:
        """Make these the rules of the pool's tenants. One call when they are already, else one more for each part.

        Raises KvgateError when other processes said something else again and again meanwhile.
        """
        wanted = -1
        for _ in range(2 + 4 * len(parts.rows)):
            words = parts.rows[wanted] if 0 <= wanted < len(parts.rows) else ()
            reply, rest = await self._ask("set_tenants", "", parts.digest, wanted, len(parts.rows), *words)
            wanted = int(rest[0])
            if wanted < 0:
                return reply
        raise KvgateError("other processes keep changing the rules of the tenants")

    async def override(self, name: str, text: str | None, ttl_ms: int, *, keep: bool = False) -> Reply:
        """Hold a text under a name until `ttl_ms` is over; None ends it. With `keep`, one that is there stays.

        Raises ValueError for an empty text, and for one name too many.
        """
        wire.check_numbers(max(ttl_ms, 0))
        if text == "":
            raise ValueError("the text of an override is not empty")
        try:
            return (await self._ask("override", "", _name(name), text or "", max(ttl_ms, 0), int(keep)))[0]
        except ResponseError as error:
            if str(error).startswith("TOOMANY"):
                raise ValueError(str(error)) from error
            raise

    async def overrides(self) -> dict[str, tuple[str, float]]:
        """The texts that hold now, each with the seconds that are left."""
        _, rest = await self._ask("overrides", "")
        return {text_of(name): (text_of(text), int(left_ms) / 1000) for name, text, left_ms in rest[0]}

    # the whole

    async def pump(self) -> Reply:
        """Go on deciding where a call stopped at its bounds."""
        return (await self._ask("pump", ""))[0]

    async def reap(self) -> list[str]:
        """Take every process whose lease ran out for gone; returns their pids."""
        _, rest = await self._ask("reap", "")
        return [text_of(pid) for pid in rest[0]]

    async def ahead(self, rids: Sequence[str]) -> list[int]:
        """How many stand before each of these requests in its flow; 0 for one that does not wait."""
        _, rest = await self._ask("ahead", "", *(_name(rid) for rid in rids))
        return [int(number) for number in rest[0]]

    async def view(self, tenants_max: int = TENANTS_SHOWN_MAX) -> LedgerView:
        """A consistent snapshot. An engine accepts when one live process uses it; it is listed while one knows it."""
        wire.check_numbers(tenants_max)
        _, (queued, oldest_ms, engines, totals, tenants) = await self._ask("view", "", tenants_max)
        return LedgerView(
            engines=tuple(use_of(row) for row in engines),
            queued=int(queued),
            oldest_wait_s=int(oldest_ms) / 1000,
            mode="redis",
            totals=totals_of(totals),
            tenants=tuple(tenant_use_of(row) for row in tenants),
        )

    async def verify(self) -> list[str]:
        """Every invariant that does not hold, in words; empty when all is well. Reads everything: not for each beat."""
        _, rest = await self._ask("verify", "")
        return [text_of(line) for line in rest[0]]

    async def inspect(self, head_max: int = 20) -> Inspection:
        """Who holds what, whose sums are orphaned, and who is first in the queue."""
        reply, (leases, holdings, orphans, head, parked) = await self._ask("inspect", "", head_max)
        return Inspection(
            epoch=reply.epoch,
            leases_ms={text_of(pid): int(left_ms) for pid, left_ms in leases},
            holdings=tuple(holding_of(row) for row in holdings),
            orphans=tuple(orphan_of(row) for row in orphans),
            head=tuple(waiting_of(row) for row in head),
            parked=int(parked),
        )

    async def _ask(self, verb: str, pid: str, *words: str | int) -> tuple[Reply, list[Any]]:
        """Run a verb. Raises LeaseLost and LedgerCorrupt."""
        if pid:
            _name(pid)
        try:
            status, epoch, now_ms, unfinished, grace, *rest = await self._run(verb, self._token, pid, *words)
        except ResponseError as error:
            if str(error).startswith("LEDGERCORRUPT"):
                raise LedgerCorrupt(str(error)) from error
            raise
        if not status:
            raise LeaseLost(pid, text_of(epoch))
        return Reply(text_of(epoch), int(now_ms), bool(unfinished), bool(grace)), rest

    async def _run(self, verb: str, *words: str | int) -> list[Any]:
        script = self._scripts[verb]
        tail = (len(self._keys), *self._keys, *words)
        try:
            answer: list[Any] = await self._client.execute_command("EVALSHA", script.sha, *tail)
        except NoScriptError:
            answer = await self._client.execute_command("EVAL", script.text, *tail)
        return answer


# What goes in.

_NO_CHARGE = Charge(PriorityClass.STANDARD, 0, 0, 0)


def class_number(priority: PriorityClass) -> int:
    """1 for the class that is served first."""
    return LEVELS[priority] + 1


def _or_none(number: int | None) -> int | str:
    return "" if number is None else number


def _answer(ask: Ask, words: Sequence[str]) -> Place | Refusal | RateSpent:
    match words:
        case ["queued", seq, rank]:
            return Place(int(seq), int(rank))
        case ["rate", "tokens_per_minute" | "requests_per_minute" as budget, after_ms]:
            return RateSpent(int(after_ms) / 1000, budget)
        case ["taken"]:
            raise ValueError(f"request {ask.request_id} is queued by another process")
        case _:
            return Refusal(words[0])


def _name(text: str) -> str:
    """An id that may stand in a key of a hash. Raises ValueError for control characters, which separate there."""
    if not text or not text.isprintable():
        raise ValueError(f"an id has printable characters only: {text!r}")
    return text


def _counted(names: Collection[str]) -> Iterator[str | int]:
    yield len(names)
    for name in names:
        yield _name(name)


def _prices(costs: Mapping[EngineShape, KVCost]) -> Iterator[str | int]:
    for shape, cost in costs.items():
        yield keys.shape_key(shape)
        yield from wire.parts_of(cost, forecast_max=wire.FORECAST_MAX)
        yield wire.forecast_text(cost)


__all__ = [
    "BeatReply",
    "Client",
    "Granted",
    "Holding",
    "Inspection",
    "LeaseLost",
    "LedgerScripts",
    "Orphan",
    "Place",
    "Refused",
    "Reply",
    "Sums",
    "Waiting",
    "read_entry",
]
