"""Keeps a process alive in a shared ledger: its lease, its heartbeat, and what to do when either breaks.

Every heartbeat says what the process holds, absolutely, and which engines it does not use now. It renews the
lease and puts right whatever a lost, late or doubled call left behind. Between heartbeats the keeper runs what
must not wait: a `pump` where a call stopped at its bounds, and an early beat when somebody hurries it.

The line to Redis is in one of three states:

* `UP`: calls go to Redis.
* `UNSURE`: a call failed, the epoch changed, the lease was lost, or nothing was heard for half a lease (this
  process was stopped). Requests are only noted down. With the next beat that is taken, the host *restores*:
  it tells Redis its engines and everything that waits, at its old place. Then the line is `UP`.
* `DOWN`: nothing but failures for `OUTAGE_S`. The host decides alone (`fallback`) until a beat is taken, then as above.

A call that fails counts as the first failure and hurries a beat, so a Redis that hangs is found out within two
calls' timeouts, and one that only lost a connection, or handed over to a replica at once, is back after a beat
without having been `DOWN`. While it is away it is asked at every heartbeat, so it is used again within one.

No heartbeat, no lease: a keeper that dies takes the process out of the pool. So it survives every exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from kvgate.errors import ConfigError, LedgerCorrupt
from kvgate.ledger.batching import CALL_S_MAX
from kvgate.ledger.connect import TROUBLE
from kvgate.ledger.election import rank_of
from kvgate.ledger.scripts import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kvgate.clock import Clock
    from kvgate.ledger.scripts import BeatReply, LedgerScripts, Reply, Sums

OUTAGE_S = 0.25
"""From the first failure: a lost connection is mended by then, and a switch within a second leaves time for two
timeouts and a heartbeat."""
RETRY_S = 0.05
"""Between beats until it is known which of the two it is."""
PUMPS_MAX = 64
"""In one go: 1,024 grants; then a heartbeat is due again."""

log = logging.getLogger(__name__)


def reassert_s(heartbeat_s: float) -> float:
    """Until all have said what they hold, when Redis began anew or was out of reach: so long at least nothing is
    granted.

    The try that was under way when it came back ends within the bound of a call, and the next begins within a
    heartbeat. Whoever is later than that, on a busy machine, is waited for by number (`await_all` in `gone.lua`).
    """
    return heartbeat_s + CALL_S_MAX


class Link(StrEnum):
    UP = "up"
    UNSURE = "unsure"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a heartbeat says."""

    ack: int
    rel: int
    sums: Mapping[tuple[str, str], Sums]
    """By engine and tenant."""
    closed: Collection[str]


class Host(Protocol):
    """The ledger that a keeper serves."""

    def claim(self) -> Claim:
        """Taken at the moment the beat leaves."""
        ...

    async def prepare(self, *, up: bool) -> None:
        """Before a beat: read the stream of grants up to now.

        Where the line was not `up`, the connection and the stream may be others than before.
        """
        ...

    async def beaten(self, reply: BeatReply, *, up: bool) -> None:
        """A beat was taken; with `up` no `restore` follows."""
        ...

    async def restore(self) -> None:
        """Tell Redis what it may not know: engines and everything that waits. Raises when it can't."""
        ...

    def went_down(self, why: str, live: int, leased_until_s: float) -> None:
        """Decide alone, as one of `live` processes; until then by the process's clock nobody takes it for gone."""
        ...

    def came_back(self) -> None:
        """Redis takes beats again: decide nothing alone from here on."""
        ...

    def happened(self, event: str) -> None:
        """For the metrics: `epoch_changed`, `lease_lost`, `unsure`."""
        ...


class Keeper:
    """One per ledger. `run` is its life; the rest is called from the same event loop."""

    def __init__(
        self,
        scripts: LedgerScripts,
        pid: str,
        host: Host,
        *,
        clock: Clock,
        heartbeat_s: float,
        lease_s: float,
    ) -> None:
        self._scripts = scripts
        self._pid = pid
        self._host = host
        self._clock = clock
        self._heartbeat_s = heartbeat_s
        self._lease_s = lease_s
        self.link = Link.UNSURE
        self.epoch: str | None = None
        self.live = 0
        """Processes that shared the pool at the last beat; 0 before the first."""
        self._rank, self._ranked = 0, 0
        self._failing_since_s: float | None = None
        self._doubts = 0
        self._beaten_s: float | None = None
        self._due_s = clock.monotonic()
        self._pump_wanted = False
        self._wake = asyncio.Event()
        self._beating = asyncio.Lock()

    @property
    def up(self) -> bool:
        return self.link is Link.UP

    @property
    def lease_sure(self) -> bool:
        """Whether the lease cannot have run out, nor does within a heartbeat: time for a request to reach its engine.

        It was given when a beat was taken, which was after it was sent.
        """
        sure_s = self._lease_s - self._heartbeat_s
        return self._beaten_s is not None and self._clock.monotonic() < self._beaten_s + sure_s

    def elected(self, thing: str) -> bool:
        """Whether a thing that one process is enough for falls to this one, by the last beat; before it, to each."""
        return self._ranked == 0 or rank_of(thing, self._ranked) == self._rank

    async def run(self) -> None:
        """Beat and pump until cancelled."""
        while True:
            self._wake.clear()
            if self._clock.monotonic() >= self._due_s:
                await self.beat()
            elif self._pump_wanted and self.up:
                await self._pump()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._due_s - self._clock.monotonic(), 0)):
                    await self._wake.wait()

    async def beat(self) -> bool:
        """One heartbeat, and what it finds to be done; False when Redis did not take it."""
        async with self._beating:
            self._due_s = self._clock.monotonic() + self._heartbeat_s
            try:
                await self._beat()
            except (ConfigError, LeaseLost, LedgerCorrupt, *TROUBLE) as error:
                self._failed(error)
            except Exception as error:
                log.exception("a heartbeat of the ledger failed")
                self._failed(error)
            else:
                return True
            return False

    async def _beat(self) -> None:
        now_s = self._clock.monotonic()
        if self._beaten_s is not None and now_s - self._beaten_s > self._lease_s / 2:
            self.doubt()  # this process was stopped, or Redis was away
        await self._host.prepare(up=self.up)
        await self._send()
        self._beaten_s = now_s
        if not self.up:
            await self._restore()
        self._failing_since_s = None

    async def _restore(self) -> None:
        doubts = self._doubts
        self.link = Link.UNSURE
        self._host.came_back()
        await self._send()  # with what was granted here since the first
        await self._host.restore()
        if doubts == self._doubts:
            self.link = Link.UP
        else:
            self.hurry()

    async def _send(self) -> None:
        claim = self._host.claim()
        reply = await self._scripts.beat(
            self._pid,
            ack=claim.ack,
            rel=claim.rel,
            sums=claim.sums,
            closed=claim.closed,
            known=self.live,
        )
        if reply.epoch != self.epoch:
            if self.epoch is not None:
                log.warning(
                    "the shared ledger began anew (epoch %s); this process says again what it holds",
                    reply.epoch,
                )
                self._host.happened("epoch_changed")
            self.epoch = reply.epoch
            self._to_unsure()
        elif reply.lease_new:
            self._host.happened("lease_lost")
            self.doubt()
        # In a grace the others are on their way back: Redis may go again before they are.
        self.live = max(self.live, reply.live) if reply.grace else reply.live
        self._rank, self._ranked = reply.rank, reply.live
        self._want_pump(reply)
        await self._host.beaten(reply, up=self.up)

    def note(self, reply: Reply) -> None:
        """Look at the answer of any call."""
        self._want_pump(reply)
        if reply.epoch != self.epoch:
            self.doubt()
            self.hurry()

    def trouble(self, error: BaseException) -> None:
        """A call failed: find out how it stands."""
        log.debug("a call of the ledger failed: %s", error)
        self._fails()
        self.hurry()

    def lost(self) -> None:
        """A call was told that this process has no lease."""
        self._host.happened("lease_lost")
        self.doubt()
        self.hurry()

    def doubt(self) -> None:
        """Something may have been lost: do not rely on Redis before the host has restored."""
        self._doubts += 1
        self._to_unsure()

    def hurry(self) -> None:
        """Beat now."""
        self._due_s = min(self._due_s, self._clock.monotonic())
        self._wake.set()

    def _to_unsure(self) -> None:
        if self.up:
            self.link = Link.UNSURE
            self._host.happened("unsure")

    def _failed(self, error: BaseException) -> None:
        if self.link is Link.DOWN:
            return
        if self._fails() < OUTAGE_S:
            self._due_s = self._clock.monotonic() + RETRY_S
        else:
            self.link = Link.DOWN
            leased_until_s = 0.0 if self._beaten_s is None else self._beaten_s + self._lease_s
            self._host.went_down(f"{type(error).__name__}: {error}", self.live, leased_until_s)

    def _fails(self) -> float:
        """Note a failure; for how long there was nothing else."""
        self.doubt()
        now_s = self._clock.monotonic()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        return now_s - self._failing_since_s

    def _want_pump(self, reply: Reply) -> None:
        if reply.unfinished and not reply.grace:
            self._pump_wanted = True
            self._wake.set()

    async def _pump(self) -> None:
        for _ in range(PUMPS_MAX):
            self._pump_wanted = False
            try:
                self.note(await self._scripts.pump())
            except (LedgerCorrupt, *TROUBLE) as error:
                self.trouble(error)
            if not self._pump_wanted:
                return

    def __repr__(self) -> str:
        return f"<Keeper {self._pid}: {self.link}, epoch {self.epoch}, {self.live} live>"
