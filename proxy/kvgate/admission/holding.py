"""Holding a grant: whoever takes gives back, in the same scope, by every door.

The release is shielded from cancellation (an awaited release in a plain `finally` does not run when the client
left) and bounded in time. Where the engine may still be computing, because its connection was closed before the
answer was complete, the reservation is kept in state *draining* for a short grace: vLLM frees the blocks of an
aborted request at its next steps, not at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Self

import anyio

from kvgate.admission.sharing import Holder, Share
from kvgate.ledger.base import Grant, Ledger, Served
from kvgate_policies.occupancy import Occupancy, guaranteed
from kvgate_policies.sharing import NO_PARTS, Parts, reshared
from kvgate_policies.types import KVCost

RELEASE_S_MAX = 5.0
"""For a release to be taken; a ledger that takes longer learns of it from its lease."""

log = logging.getLogger(__name__)


class Holding:
    """One grant, from the moment it is held until everything is given back.

    async with Holding(ledger, grant, draining_hold_s) as held:
        await held.shares(…)     # with those that run there and begin alike
        held.measured_by(…)
        held.sent()              # the engine may be computing from here …
        await held.first_token()
        await held.done()        # … to here
    """

    def __init__(self, ledger: Ledger, grant: Grant, draining_hold_s: float) -> None:
        self.grant = grant
        self._ledger = ledger
        self._draining_hold_s = draining_hold_s
        self._cost = grant.cost
        self._share: Share | None = None
        self._parts = NO_PARTS
        """Those that `_cost` was made with."""
        self._taken: Callable[[], Served | None] = lambda: None
        self._computing = False
        self._released = False
        self._prefill_timer: asyncio.TimerHandle | None = None
        self._prefill_over: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop_prefill_timer()
        if self._released:
            return
        with anyio.CancelScope(shield=True):
            if self._computing:
                await anyio.sleep(self._draining_hold_s)
            await self._release()

    @property
    def sure(self) -> bool:
        """The grant is still this process's: it was not stopped or cut off for longer than its lease."""
        return self._ledger.lease_sure

    @property
    def cost(self) -> KVCost:
        """What is held at present."""
        return self._cost

    @property
    def released(self) -> bool:
        return self._released

    @property
    def blocks_apart(self) -> int:
        """Of its blocks, those that are no part of what `expect` is told: others hold them too."""
        return self._parts.both

    def expect(self, expected: Occupancy) -> None:
        """Hold that from now on. For forecasts, whose ledger is told of many at once."""
        self._cost = replace(self._cost, expected=self._with_pledged(expected))

    def _with_pledged(self, expected: Occupancy) -> Occupancy:
        pledged = self._parts.pledged
        return expected + guaranteed(pledged) if pledged else expected

    async def shares(self, share: Share | None, lent_blocks: int = 0) -> None:
        """What it begins with is shared with others; None where it isn't. Only after it was entered.

        `lent_blocks` are those that the grant was made without; no fewer are lent to it now.
        """
        if share is not None:
            self._share, self._parts = share, Parts(lent=lent_blocks)
            await _tell_all(share.joins(self))

    def take_parts(self, parts: Parts) -> bool:
        """For `Share`."""
        before, self._cost = self._cost, reshared(self._cost, self._parts, parts)
        self._parts = parts
        return self._cost != before

    async def tell(self) -> None:
        """For `Share`: let the ledger know what is held."""
        if not self._released:
            await self._ledger.renew(self.grant.request_id, self._cost)

    def sent(self) -> None:
        """The request is on its way: the engine may hold blocks for it."""
        self._computing = True

    def refused(self) -> None:
        """The engine never took the request, or has ended it by its own word."""
        self._computing = False

    def measured_by(self, taken: Callable[[], Served | None]) -> None:
        """What tells, at the release, what the request really took; None leaves the charge as it is."""
        self._taken = taken

    async def first_token(self, blocks: int | None = None, *, shown: bool = False) -> None:
        """The prompt is computed: give the prefill part back, and the blocks that only reading it took.

        `blocks` are those still needed; None where that is not known, or as many as before. `shown`: the engine has
        sent it, so that what others hold of the prompt is given back too.
        """
        if self._released:
            return
        before = self._cost
        left = before.blocks if blocks is None else min(blocks, before.blocks)
        self._cost = replace(before, prefill_tokens=0, blocks=left)
        bearers = self._share.shows() if shown and self._share is not None else []
        await _tell_all(one for one in bearers if one is not self)
        if self._cost != before:
            await self.tell()

    def first_token_after(self, after_s: float) -> None:
        """A JSON answer shows no first token: give the prefill part back when it should be computed.

        A timer, not a task that sleeps: nearly every answer is there before it.
        """
        loop = asyncio.get_running_loop()
        self._prefill_timer = loop.call_later(after_s, self._begin_first_token)

    def _begin_first_token(self) -> None:
        self._prefill_over = asyncio.create_task(self._first_token_in_background())

    async def _first_token_in_background(self) -> None:
        try:
            await self.first_token()
        except Exception:
            log.exception(
                "the prefill part of %s was not given back; its release will", self.grant.request_id
            )

    def _stop_prefill_timer(self) -> None:
        """Where the task is stopped half-way, the release gives back all: the order of the two does not matter."""
        if self._prefill_timer is not None:
            self._prefill_timer.cancel()
        if self._prefill_over is not None:
            self._prefill_over.cancel()

    async def correct(self, cost: KVCost) -> None:
        """The prompt turned out larger than it was counted."""
        if not self._released:
            expected = None if cost.expected is None else self._with_pledged(cost.expected)
            blocks = cost.blocks - self._parts.lent
            await self._renew(
                replace(cost, blocks=blocks, expected=expected, prefill_tokens=self._cost.prefill_tokens)
            )

    async def done(self) -> None:
        """The engine has finished: its blocks are free, so the room is given back before the last bytes go out."""
        self._computing = False
        if not self._released:
            await self._release()

    async def _renew(self, cost: KVCost) -> None:
        self._cost = cost
        await self._ledger.renew(self.grant.request_id, cost)

    async def _release(self) -> None:
        self._released = True
        self._stop_prefill_timer()
        with anyio.move_on_after(RELEASE_S_MAX, shield=True):
            try:
                if self._share is not None:
                    await _tell_all(self._share.leaves())
            finally:
                await self._ledger.release(self.grant.request_id, self._taken())


async def _tell_all(holders: Iterable[Holder]) -> None:
    """All of them, though the client of one leaves meanwhile: what they hold has changed already."""
    with anyio.CancelScope(shield=True):
        for holder in holders:
            await holder.tell()
