"""Bodies that are waited for no longer once the process ends."""

from __future__ import annotations

import asyncio
from typing import Any

from kvgate.api.body import Bodies, NoBody
from support.virtual_loop import run_virtual


class Client:
    """Sends what it is told to, and then nothing."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)

    async def receive(self) -> dict[str, Any]:
        if self.messages:
            return self.messages.pop(0)
        await asyncio.Event().wait()
        raise AssertionError


PART: dict[str, Any] = {"type": "http.request", "body": b"half", "more_body": True}
END: dict[str, Any] = {"type": "http.request", "body": b"whole", "more_body": False}


def test_whoever_is_still_sending_is_given_up_when_the_process_ends() -> None:
    async def main() -> tuple[list[Any], float]:
        bodies, clock = Bodies(), asyncio.get_running_loop()
        reading = [
            asyncio.create_task(bodies.read(Client(PART).receive, (), 100, 60.0)),
            asyncio.create_task(bodies.read(Client(END).receive, (), 100, 60.0)),
        ]
        await asyncio.sleep(5)
        bodies.give_up()
        late = await bodies.read(Client(PART).receive, (), 100, 60.0)
        return [*[await one for one in reading], late], clock.time()

    ended, now_s = run_virtual(main())
    assert ended == [NoBody.DRAINING, b"whole", NoBody.DRAINING]
    assert now_s < 6


def test_until_then_the_bound_is_that_of_the_body() -> None:
    async def main() -> tuple[Any, float]:
        read = await Bodies().read(Client(PART).receive, (), 100, 60.0)
        return read, asyncio.get_running_loop().time()

    assert run_virtual(main()) == (NoBody.TOO_SLOW, 60.0)
