"""A process on its own while Redis is away: its table decided by a `Fallback`, until Redis is back.

While Redis answers, this is off and decides nothing. When it begins, what the process
holds and who waits are carried over; when it ends, nothing has to be carried back, for the table has it all.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from kvgate.ledger.base import Refusal
from kvgate.ledger.fallback import Fallback, OnFailure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvgate.clock import Clock
    from kvgate.ledger.table import Entry, Table
    from kvgate_policies.types import EngineLimits, LedgerView


class Alone:
    """`bounds` are those of the grant loop: `bypass_max`, `scan_depth`, `grants_max`."""

    def __init__(self, table: Table, clock: Clock, mode: OnFailure, bounds: Mapping[str, int]) -> None:
        self._table = table
        self._clock = clock
        self._mode = mode
        self._bounds = bounds
        self._fallback: Fallback | None = None
        self._in_use: dict[str, int] = {}
        """Blocks of each engine as its gauge showed last."""
        self._continuing = False

    @property
    def on(self) -> bool:
        return self._fallback is not None

    @property
    def mode(self) -> str:
        """Who decides now: `redis`, or while it is away `local`, `closed` or `open`."""
        return "redis" if self._fallback is None else self._mode.value

    def begin(self, live: int) -> None:
        """Decide here from now on; `live` is how many processes shared the pool when last heard."""
        table = self._table
        self._fallback = fallback = Fallback(self._mode, live, table.limits.values(), **self._bounds)
        for entry in table.held():
            if entry.grant is not None:
                fallback.adopt(replace(entry.grant, request_id=entry.wire))
        for engine_id, blocks_in_use in self._in_use.items():
            fallback.gauge(engine_id, blocks_in_use)
        now_s = self._clock.monotonic()
        for entry in table.waiting():
            refusal = fallback.reserve(entry.ask, entry.place, now_s)
            if refusal is not None:
                table.drop(entry, refusal)
        self._announce()

    def end(self) -> None:
        self._fallback = None

    def reserve(self, entry: Entry) -> Refusal | None:
        """Queue one that is in the table; None when it was taken. As long as nobody decides, it only waits."""
        ask = entry.ask
        if self._fallback is None:
            full = ask.seq is None and len(self._table.waiting()) > ask.queue_depth_max
            return Refusal.QUEUE_FULL if full else None
        place = None if ask.seq is None else entry.place
        refusal = self._fallback.reserve(ask, place, self._clock.monotonic())
        self._announce()
        return refusal

    def finish(self, entry: Entry) -> None:
        """It left the table."""
        if self._fallback is not None:
            self._fallback.end(entry.wire)
            self._announce()

    def renew(self, entry: Entry) -> None:
        if self._fallback is not None and entry.grant is not None:
            self._fallback.renew(entry.wire, entry.grant.cost)
            self._announce()

    def reprice(self, entry: Entry) -> None:
        if self._fallback is not None:
            self._fallback.reprice(entry.wire, entry.ask.costs)
            self._announce()

    def observe(self, limits: EngineLimits) -> None:
        if self._fallback is not None:
            self._fallback.observe(limits)
            self._announce()

    def gauge(self, engine_id: str, blocks_in_use: int) -> None:
        """What an engine's own gauge shows; kept while this is off, for the moment when it begins."""
        self._in_use[engine_id] = blocks_in_use
        if self._fallback is not None:
            self._fallback.gauge(engine_id, blocks_in_use)
            self._announce()

    def forget(self, engine_id: str) -> None:
        self._in_use.pop(engine_id, None)
        if self._fallback is not None:
            self._fallback.forget(engine_id)
            self._announce()

    def void(self, engine_id: str) -> None:
        if self._fallback is not None:
            self._fallback.void(engine_id)
            self._announce()

    def view(self) -> LedgerView | None:
        """What this process knows of itself; None while Redis decides."""
        return None if self._fallback is None else self._fallback.view(self._clock.monotonic())

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
