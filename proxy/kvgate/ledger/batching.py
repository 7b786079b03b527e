"""Redis clients whose calls leave together: what is asked in one turn of the event loop is one write.

A ledger asks thousands of small things a second from one event loop. Sent one by one each would cost a
connection, a write and a read of its own; here they share one connection and its system calls. While a batch is
on its way the next one gathers, so the batches grow with the load by themselves, and nothing waits for a timer.

Promises:

* Calls are executed in the order in which they were made: a batch leaves when the one before it was answered.
* A call ends within `CALL_S_MAX`, whatever the server or the network does, with builtin TimeoutError at the
  latest. One that was still waiting to be sent then, is never sent.
* Cancelling the caller does not unsend a call: who reserves and is cancelled still has to withdraw.
* An error of one call is that call's alone; a broken connection is everybody's in that batch.

Nothing is tried again here. A blocking read needs a client of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError

CALL_S_MAX = 0.5
"""For one call in all: half of it waiting for the batch before, half of it in its own."""
BATCH_MAX = 256
"""Calls in one write: a few hundred µs of the server's time, so that other processes are not held up."""
STOP_S = 0.1
"""Before a task that did not heed its cancellation is cancelled again."""
WAITING_MAX = 16_384
"""Calls waiting to be sent: what piles up in `CALL_S_MAX` at 30,000 calls a second."""


@dataclass(slots=True, eq=False)
class _Call:
    args: tuple[Any, ...]
    options: dict[str, Any]
    answer: asyncio.Future[Any]
    expired: bool = False


class _Together:
    """Mixed into a client of redis-py: every command of it comes through `execute_command`."""

    _calls: deque[_Call]
    _sender: asyncio.Task[None] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._calls = deque()
        self._sender = None

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send with the others. Raises TimeoutError, redis.RedisError, or OSError."""
        if len(self._calls) >= WAITING_MAX:
            raise RedisConnectionError(f"{WAITING_MAX} calls are waiting to be sent already")
        loop = asyncio.get_running_loop()
        call = _Call(args, options, loop.create_future())
        self._calls.append(call)
        if self._sender is None:
            self._sender = loop.create_task(self._send_all())
        try:
            async with asyncio.timeout(CALL_S_MAX):
                return await call.answer
        except TimeoutError:
            call.expired = True
            raise

    async def _send_all(self) -> None:
        """Until nothing is left; no await between the last look and the end, so that no call is forgotten."""
        try:
            while self._calls:
                batch = self._next_batch()
                if batch:
                    await self._send(batch)
        finally:
            self._sender = None

    def _next_batch(self) -> list[_Call]:
        batch: list[_Call] = []
        while self._calls and len(batch) < BATCH_MAX:
            call = self._calls.popleft()
            if not call.expired:
                batch.append(call)
        return batch

    async def _send(self, batch: list[_Call]) -> None:
        try:
            async with asyncio.timeout(CALL_S_MAX):
                answers = await self._execute(batch)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is for those who wait
            answers = [error] * len(batch)
        except BaseException:  # the loop is ending: nobody may wait for ever
            for call in batch:
                call.answer.cancel()
            raise
        for call, answer in zip(batch, answers, strict=True):
            _settle(call.answer, answer)

    async def _execute(self, batch: list[_Call]) -> list[Any]:
        if len(batch) == 1:
            (call,) = batch
            return [await super().execute_command(*call.args, **call.options)]  # type: ignore[misc]
        async with self.pipeline(transaction=False) as pipe:  # type: ignore[attr-defined]
            for call in batch:
                pipe.execute_command(*call.args, **call.options)
            answers: list[Any] = await pipe.execute(raise_on_error=False)
            return answers

    async def aclose(self, *args: Any, **kwargs: Any) -> None:
        """Fail what is still waiting, and close the connection."""
        sender, self._sender = self._sender, None
        if sender is not None:
            await stop(sender)
        for call in self._calls:
            _settle(call.answer, RedisConnectionError("the client was closed"))
        self._calls.clear()
        await super().aclose(*args, **kwargs)  # type: ignore[misc]


async def stop(*tasks: asyncio.Task[Any]) -> None:
    """Cancel, and wait until all have ended.

    A cancellation that reaches redis-py while it opens a connection or sends can get lost there (Python 3.11's
    `asyncio.wait_for`), so it is repeated. The bounds of time hold all the same: its own `socket_timeout` ends
    what `asyncio.timeout` could not.
    """
    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=STOP_S)


def _settle(future: asyncio.Future[Any], answer: Any) -> None:
    if future.done():
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)


class BatchingRedis(_Together, redis.asyncio.Redis):  # type: ignore[misc]  # redis-py's own bases differ
    """A server, or the master of a Sentinel service."""


class BatchingCluster(_Together, RedisCluster):  # type: ignore[misc]  # as above
    """A cluster; all keys of a pool are on one node, so its calls still leave together."""


__all__ = ["BATCH_MAX", "CALL_S_MAX", "BatchingCluster", "BatchingRedis", "stop"]
