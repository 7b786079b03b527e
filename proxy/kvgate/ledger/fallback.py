"""What a process does while Redis is away, until it answers again.

* `local`: it goes on by itself within its share: nine tenths of each engine, divided by the processes that were
  alive at its last heartbeat, and only where the engine's own gauge shows room, for the others may use more than
  their share. The tenth that is left makes room for what the processes do not know of each other. One that never
  had a heartbeat has no share.
* `closed`: everything waits, and is answered `ledger_unavailable` when its wait is over.
* `open`: it grants at once, to the engine that is least loaded by its own sums, and counts.

All three are one ledger in memory with another share of the capacity: nothing, a part, or more than anyone can
use. What the process already holds is carried in, what waits is carried in in order. A request larger than the
share, but not than the engine, waits for Redis: each engine is therefore entered twice, as a share that takes
work and as a whole that does not.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from kvgate.ledger.core import Decision, LedgerCore
from kvgate_policies.types import EngineUse, LedgerView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvgate.ledger.base import Ask, Grant, Refusal
    from kvgate_policies.types import EngineLimits, EngineShape, KVCost

SHARE_PERCENT = 90
"""Of an engine that the processes divide among themselves."""
OPEN_FACTOR = 1 << 20
"""More of every engine than any number of requests can ask for; loads keep their order."""
PLACES_PER_SEQ = 1 << 24
"""Places that are guesses may share a `seq`; the order of arrival tells them apart."""
_WHOLE = "\0whole"


class OnFailure(StrEnum):
    """What to do while Redis is away."""

    LOCAL = "local"
    CLOSED = "closed"
    OPEN = "open"


class Fallback:
    """Decides alone. Ids are those of the wire; nothing here waits."""

    def __init__(
        self,
        mode: OnFailure,
        live: int,
        limits: Iterable[EngineLimits],
        *,
        bypass_max: int,
        scan_depth: int,
        grants_max: int,
    ) -> None:
        """`live` is how many processes shared the pool when last heard; 0 when nothing ever was."""
        self.mode = mode
        self._live = live
        self._limits: dict[str, EngineLimits] = {}
        self._in_use: dict[str, int] = {}
        """Blocks, as each engine's gauge showed last."""
        self._core = LedgerCore(bypass_max=bypass_max, scan_depth=scan_depth, grants_max=grants_max, tie=0)
        for each in limits:
            self.observe(each)

    @property
    def unfinished(self) -> bool:
        return self._core.unfinished

    def go_on(self) -> None:
        self._core.go_on()

    def take_decisions(self) -> list[Decision]:
        return self._core.take_decisions()

    def adopt(self, grant: Grant) -> None:
        """Carry in what is held already; on an engine that is not known here it weighs nothing."""
        if grant.engine_id in self._limits:
            self._core.adopt(grant)

    def reserve(self, ask: Ask, place: tuple[int, int] | None, now_s: float) -> Refusal | None:
        """Queue; None when it was taken, else why not. One that has a place is not refused for the depth."""
        seq = None if place is None else place[0] * PLACES_PER_SEQ + place[1] % PLACES_PER_SEQ
        answer = self._core.reserve(replace(ask, seq=seq, avoid=_both(ask.avoid)), now_s)
        return None if isinstance(answer, int) else answer

    def end(self, wire: str) -> None:
        self._core.end(wire)

    def renew(self, wire: str, cost: KVCost) -> None:
        self._core.renew(wire, cost)

    def reprice(self, wire: str, costs: Mapping[EngineShape, KVCost]) -> None:
        self._core.reprice(wire, costs)

    def observe(self, limits: EngineLimits) -> None:
        self._limits[limits.engine_id] = limits
        self._core.observe(replace(limits, engine_id=limits.engine_id + _WHOLE, accepting=False))
        self._core.observe(self._share(limits))

    def gauge(self, engine_id: str, blocks_in_use: int) -> None:
        """What an engine says of itself, by whomever it is used; without a word of it only the share counts."""
        self._in_use[engine_id] = blocks_in_use
        limits = self._limits.get(engine_id)
        if limits is not None:
            self._core.observe(self._share(limits))

    def forget(self, engine_id: str) -> None:
        self._limits.pop(engine_id, None)
        self._in_use.pop(engine_id, None)
        self._core.forget(engine_id)
        self._core.forget(engine_id + _WHOLE)

    def void(self, engine_id: str) -> None:
        self._core.void(engine_id)

    def view(self, now_s: float) -> LedgerView:
        """Of what this process knows of itself; engines as they are, not their share."""
        view = self._core.view(now_s)
        return replace(view, engines=tuple(self._as_it_is(view)), mode=self.mode.value)

    def _as_it_is(self, view: LedgerView) -> Iterable[EngineUse]:
        for use in view.engines:
            limits = self._limits.get(use.limits.engine_id)
            if limits is not None:
                yield replace(use, limits=limits)

    def _share(self, limits: EngineLimits) -> EngineLimits:
        match self.mode:
            case OnFailure.OPEN:
                return _scaled(limits, OPEN_FACTOR, 1)
            case OnFailure.LOCAL if self._live:
                return self._braked(_scaled(limits, SHARE_PERCENT, 100 * self._live), limits)
            case OnFailure.LOCAL | OnFailure.CLOSED:
                return replace(limits, accepting=False)

    def _braked(self, share: EngineLimits, limits: EngineLimits) -> EngineLimits:
        """The share, but no more than what is held here and the room that the gauge shows."""
        in_use = self._in_use.get(limits.engine_id)
        if in_use is None:
            return share
        uses = self._core.view(0.0).engines
        held = sum(use.reserved.blocks for use in uses if use.limits.engine_id == limits.engine_id)
        room = max(limits.blocks * SHARE_PERCENT // 100 - in_use, 0)
        return replace(share, blocks=min(share.blocks, held + room))

    def __repr__(self) -> str:
        return f"<Fallback {self.mode} of {self._live}: {self._core!r}>"


def _scaled(limits: EngineLimits, factor: int, divisor: int) -> EngineLimits:
    return replace(
        limits,
        blocks=limits.blocks * factor // divisor,
        seqs=limits.seqs * factor // divisor,
        prefill_tokens=limits.prefill_tokens * factor // divisor,
    )


def _both(avoid: frozenset[str]) -> frozenset[str]:
    return avoid | {engine_id + _WHOLE for engine_id in avoid}
