"""A process on its own while Redis is away: its table decided by a `Fallback`, until Redis is back.

While Redis answers, this is off and decides nothing. When it begins, what the process
holds and who waits are carried over; when it ends, nothing has to be carried back, for the table has it all.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from kvgate.ledger.base import Refusal, refusal_of
from kvgate.ledger.fallback import Fallback, OnFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvgate.clock import Clock
    from kvgate.ledger.base import RateSpent, Served
    from kvgate.ledger.table import Entry, Table
    from kvgate.ledger.watch import LedgerWatch
    from kvgate_policies.types import EngineLimits, LedgerView, TenantRules


class Alone:
    """`bounds` are those of the grant loop: `bypass_max`, `scan_depth`, `grants_max`."""

    def __init__(
        self,
        table: Table,
        clock: Clock,
        mode: OnFailure,
        bounds: Mapping[str, int],
        *,
        orphan_hold_s: float,
        watch: LedgerWatch,
    ) -> None:
        self._table = table
        self._clock = clock
        self._mode = mode
        self._bounds = bounds
        self._orphan_hold_s = orphan_hold_s
        self._watch = watch
        self._fallback: Fallback | None = None
        self._rules: Mapping[str, TenantRules] = {}
        self._continuing = False

    @property
    def on(self) -> bool:
        return self._fallback is not None

    @property
    def mode(self) -> str:
        """Who decides now: `redis`, or while it is away `local`, `closed` or `open`."""
        return "redis" if self._fallback is None else self._mode.value

    def begin(self, live: int, leased_until_s: float) -> None:
        """Decide here from now on; `live` is how many processes shared the pool when last heard."""
        table = self._table
        self._fallback = fallback = Fallback(
            self._mode,
            live,
            table.limits.values(),
            floors=table.known(),
            leased_until_s=leased_until_s + table.redis_ahead_s,
            orphan_hold_s=self._orphan_hold_s,
            **self._bounds,
        )
        fallback.set_tenants(self._rules)
        for entry in table.held():
            if entry.grant is not None:
                fallback.adopt(replace(entry.grant, request_id=entry.wire))
        now_s = self._now_s()
        for entry in table.waiting():
            ask = replace(entry.ask, rank=table.rank(entry))
            refusal = fallback.reserve(ask, entry.place, now_s)
            if refusal is not None:
                table.drop(entry, refusal_of(refusal))
        self._announce()

    def end(self) -> None:
        self._fallback = None

    def set_tenants(self, rules: Mapping[str, TenantRules]) -> None:
        """Kept while this is off, for the moment when it begins."""
        self._rules = rules
        if self._fallback is not None:
            self._fallback.set_tenants(rules)
            self._announce()

    def reserve(self, entry: Entry) -> Refusal | RateSpent | None:
        """Queue one that is in the table; None when it was taken. As long as nobody decides, it only waits."""
        ask = entry.ask
        if self._fallback is None:
            full = ask.seq is None and self._table.depth(ask.tenant) > ask.queue_depth_max
            return Refusal.QUEUE_FULL if full else None
        place = None if ask.seq is None else entry.place
        refusal = self._fallback.reserve(ask, place, self._now_s())
        self._announce()
        return refusal

    def finish(self, entry: Entry, served: Served | None = None) -> None:
        """It left the table."""
        if self._fallback is not None:
            self._fallback.end(entry.wire, self._now_s(), served)
            self._announce()

    def renew(self, entries: Sequence[Entry]) -> None:
        """The costs of these grants are other ones."""
        if self._fallback is not None and entries:
            held = ((entry.wire, entry.grant) for entry in entries)
            self._fallback.renew({wire: grant.cost for wire, grant in held if grant is not None})
            self._announce()

    def reprice(self, entry: Entry) -> None:
        if self._fallback is not None:
            self._fallback.reprice(entry.wire, entry.ask.costs)
            self._announce()

    def observe(self, limits: EngineLimits) -> None:
        if self._fallback is not None:
            self._fallback.observe(limits)
            self._announce()

    def gauge(self, engine_id: str, blocks: int, seqs: int | None) -> None:
        """What an engine's own gauges show: blocks in use, sequences there. Only readings from now on count."""
        if self._fallback is not None:
            self._fallback.gauge(engine_id, blocks, seqs, self._now_s())
            self._announce()

    def forget(self, engine_id: str) -> None:
        if self._fallback is not None:
            self._fallback.forget(engine_id)
            self._announce()

    def void(self, engine_id: str) -> None:
        if self._fallback is not None:
            self._fallback.void(engine_id)
            self._announce()

    def view(self) -> LedgerView | None:
        """What this process knows of itself; None while Redis decides."""
        return None if self._fallback is None else self._fallback.view(self._now_s())

    def _now_s(self) -> float:
        """By the clock of Redis, as far as it was heard, so that the ranks which it gave keep their meaning."""
        return self._clock.monotonic() + self._table.redis_ahead_s

    def _announce(self) -> None:
        """Hand out what was decided; where the grant loop stopped at its bounds, let it go on soon."""
        fallback = self._fallback
        if fallback is None:
            return
        for wire, decision in fallback.take_decisions():
            entry = self._table.by_wire(wire)
            if entry is None:
                continue
            if isinstance(decision, Refusal):
                self._table.drop(entry, decision)
                continue
            grant = replace(decision, request_id=entry.request_id, seq=entry.ticket.seq)
            self._table.hold(entry, grant, counted=None)
            self._watch.happened(f"alone_{self.mode}")
            if entry.asked_s is not None:
                self._table.doubt(wire)
        if fallback.unfinished and not self._continuing:
            self._continuing = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._continuing = False
        if self._fallback is not None:
            self._fallback.go_on()
            self._announce()

    def __repr__(self) -> str:
        return f"<Alone {self._fallback or 'off'}>"
