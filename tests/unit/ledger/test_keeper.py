"""What a process takes with it when Redis goes away."""

from __future__ import annotations

from typing import Any

from kvgate.ledger.answers import BeatReply
from kvgate.ledger.keeper import OUTAGE_S, Claim, Keeper
from unit.ledger.pool import HandClock


class Server:
    """Answers beats as it is told; None: not at all."""

    def __init__(self) -> None:
        self.reply: BeatReply | None = None

    async def beat(self, *_: Any, **__: Any) -> BeatReply:
        if self.reply is None:
            raise ConnectionError("away")
        return self.reply


class Host:
    def __init__(self) -> None:
        self.alone_of: list[int] = []

    def claim(self) -> Claim:
        return Claim(0, 0, {}, ())

    async def prepare(self, *, up: bool) -> None: ...

    async def beaten(self, reply: BeatReply, *, up: bool) -> None: ...

    async def restore(self) -> None: ...

    def went_down(self, why: str, live: int, leased_until_s: float) -> None:
        self.alone_of.append(live)

    def came_back(self) -> None: ...

    def happened(self, event: str) -> None: ...


async def test_redis_that_goes_again_in_a_grace_leaves_each_one_of_as_many_as_before():
    clock, server, host = HandClock(), Server(), Host()
    scripts: Any = server
    keeper = Keeper(scripts, "p", host, clock=clock, heartbeat_s=0.25, lease_s=5.0)
    server.reply = BeatReply("one", 0, False, False, live=3, lease_new=False, gseq=0)
    assert await keeper.beat()
    server.reply = BeatReply("two", 0, False, True, live=1, lease_new=True, gseq=0)
    assert await keeper.beat()
    server.reply = None
    assert not await keeper.beat()
    clock.now_s += OUTAGE_S
    assert not await keeper.beat()
    assert host.alone_of == [3]
