"""Things to do after a while: a bag of tasks that can be emptied.

Bounded by its users: each engine has at most one hold and one canary under way.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


class Later:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def after(self, delay_s: float, action: Callable[[], Awaitable[None]]) -> None:
        """Do it once, in its own task. A failure is logged: there is no one to raise it to."""
        task = asyncio.get_running_loop().create_task(self._do(delay_s, action))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def clear(self) -> None:
        """Cancel all and wait until they are gone."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _do(self, delay_s: float, action: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(delay_s)
        try:
            await action()
        except Exception:
            log.exception("a delayed change of an engine failed; the next probe tries again")
