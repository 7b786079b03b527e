"""What the console of a group of workers shows: each is asked for its snapshot, and they are put together."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from kvgate.console import Snapshot, decode, merged

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import httpx

log = logging.getLogger(__name__)


class CrewView:
    """Implements `console.look.View`."""

    def __init__(
        self,
        ask_all: Callable[[str, str, Mapping[str, str]], Awaitable[Mapping[str, httpx.Response | None]]],
        token: str | None,
    ) -> None:
        """`ask_all` is the front's way to ask all workers; `token` the one that they ask for."""
        self._ask_all = ask_all
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}

    async def look(self) -> Snapshot | None:
        answers = await self._ask_all("GET", "/console/snapshot", self._headers)
        return merged({name: _read(answer) for name, answer in answers.items()})


def _read(answer: httpx.Response | None) -> Snapshot | None:
    """None for a worker that does not answer, or not with a snapshot."""
    if answer is None or answer.status_code != HTTPStatus.OK:
        return None
    try:
        return decode(answer.content)
    except msgspec.MsgspecError:
        log.exception("a worker's snapshot can't be read")
        return None
