"""Holding a grant: whoever takes gives back, in the same scope, by every door.

The release is shielded from cancellation (an awaited release in a plain `finally` does not run when the client
left) and bounded in time. Where the engine may still be computing, because its connection was closed before the
answer was complete, the reservation is kept in state *draining* for a short grace: vLLM frees the blocks of an
aborted request at its next steps, not at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Self

import anyio

from kvgate.ledger.base import Grant, Ledger, Served
from kvgate_policies.types import KVCost

RELEASE_S_MAX = 5.0
"""For a release to be taken; a ledger that takes longer learns of it from its lease."""

log = logging.getLogger(__name__)


class Holding:
    """One grant, from the moment it is held until everything is given back.

    async with Holding(ledger, grant, draining_hold_s) as held:
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

    def sent(self) -> None:
        """The request is on its way: the engine may hold blocks for it."""
        self._computing = True

    def refused(self) -> None:
        """The engine never took the request, or has ended it by its own word."""
        self._computing = False

    def measured_by(self, taken: Callable[[], Served | None]) -> None:
        """What tells, at the release, what the request really took; None leaves the charge as it is."""
        self._taken = taken

    async def first_token(self) -> None:
        """The prompt is computed: give the prefill part back."""
        if self._cost.prefill_tokens and not self._released:
            await self._renew(replace(self._cost, prefill_tokens=0))

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
            await self._renew(replace(cost, prefill_tokens=self._cost.prefill_tokens))

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
            await self._ledger.release(self.grant.request_id, self._taken())
