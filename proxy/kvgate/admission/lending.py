"""What a request that waits is charged less, because others hold the beginning of its prompt already.

A discount is what it would be lent on every engine that it may go to, in a pool of one shape. It is looked at when a
request begins to wait, and again when something else can be lent of what it begins with: by one task for many changes,
`REPRICED_MAX` requests at a time. So a price may be older than what holds: `may_start` is asked of every grant.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kvgate_policies.sharing import discounted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvgate.admission.attempt import Passage
    from kvgate.admission.sharing import Share, Sharing
    from kvgate.engines.base import Engines
    from kvgate.ledger.base import Grant, Ledger
    from kvgate_policies.types import EngineShape, KVCost

REPRICED_MAX = 64
"""Requests that are told to the ledger before others run: each may let somebody start, which takes some 50 µs."""

log = logging.getLogger(__name__)


class Lending:
    """Of one pool. `waiting` has those that wait, by their ids; the line keeps it."""

    def __init__(
        self, sharing: Sharing, engines: Engines, ledger: Ledger, waiting: Mapping[str, Passage]
    ) -> None:
        self._sharing = sharing
        self._engines = engines
        self._ledger = ledger
        self._waiting = waiting
        self._changed: set[int] = set()
        self._task: asyncio.Task[None] | None = None
        sharing.on_change = self._change

    def costs(self, passage: Passage) -> Mapping[EngineShape, KVCost]:
        """What it costs while it waits, by what could be lent to it now."""
        return _costs(passage, self._lent_blocks(passage))

    async def waits(self, request_id: str, passage: Passage) -> None:
        """It was not granted at its full price, at which it was checked whether it could ever fit."""
        lent = self._lent_blocks(passage)
        if lent:
            await self._ledger.reprice(request_id, _costs(passage, lent))

    def may_start(self, passage: Passage, grant: Grant, share: Share | None) -> int | None:
        """The discount that a grant was made at, if that much is lent to it there now; else None."""
        whole = passage.priced.costs.get(grant.shape)
        if whole is None or not passage.beginning:
            return 0
        lent = max(whole.blocks - grant.cost.blocks, 0)
        if lent and (share is None or self._sharing.at(grant.engine_id).live_blocks(share.chain) < lent):
            return None
        return lent

    def _lent_blocks(self, passage: Passage) -> int:
        shapes = self._engines.shapes()
        if not passage.beginning or len(shapes) != 1:
            return 0
        [shape] = shapes
        engine_ids = self._engines.available() - self._engines.without(passage.request.model)
        return self._sharing.lent_blocks(passage.beginning, shape, engine_ids)

    def _change(self, first: int) -> None:
        if not self._waiting:
            return
        self._changed.add(first)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._reprice_changed())

    async def _reprice_changed(self) -> None:
        try:
            while self._changed:
                await self._reprice_all(frozenset(self._changed))
        except Exception:  # the next change tries again; until then a grant at an old price is queued again
            log.exception("those that wait were not priced by what others hold")

    async def _reprice_all(self, changed: frozenset[int]) -> None:
        """Those of a slice at once: a shared ledger is told of them in one write."""
        self._changed -= changed
        alike = [name for name, passage in self._waiting.items() if _begins_with(passage, changed)]
        due = [name for name in alike if self._lent_anew(name) is not None]
        for start in range(0, len(due), REPRICED_MAX):
            await asyncio.gather(*map(self._reprice, due[start : start + REPRICED_MAX]))

    def _lent_anew(self, request_id: str) -> int | None:
        """What it would be lent now; None if that is nothing new, or it waits no more."""
        passage = self._waiting.get(request_id)
        lent = None if passage is None else self._lent_blocks(passage)
        return None if passage is None or lent == passage.lent_blocks else lent

    async def _reprice(self, request_id: str) -> None:
        lent = self._lent_anew(request_id)
        if lent is not None:
            await self._ledger.reprice(request_id, _costs(self._waiting[request_id], lent))


def _costs(passage: Passage, lent: int) -> Mapping[EngineShape, KVCost]:
    """With so many blocks lent to it, which it remembers."""
    passage.lent_blocks = lent
    if not lent:
        return passage.priced.costs
    return {shape: discounted(cost, lent, shape.block_size) for shape, cost in passage.priced.costs.items()}


def _begins_with(passage: Passage, changed: frozenset[int]) -> bool:
    return any(chain and chain[0].key in changed for chain in passage.beginning.values())
