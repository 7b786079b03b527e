"""An event loop whose time jumps to the next timer when nothing is ready.

For in-process fakes only: a real socket is never ready in no time. An hour's timeout passes at once, and a
loop with nothing to wait for is reported as a deadlock instead of hanging the test.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            msg = "deadlock: nothing is ready and no timer is set"
            raise RuntimeError(msg)
        self.now_s += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


class LoopClock:
    """A `Clock` that reads the running loop's time, virtual or real."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


def run_virtual(main: Awaitable[T]) -> T:
    """Run `main` to its end in virtual time."""

    async def _main() -> T:
        return await main

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_main())
