"""The whole of kvgate in the test's own loop, on real sockets, in front of scripted or simulated engines.

async with gateway([up.url], tenant=TenantPolicy(queue_wait_s_max=0.5)) as gate:
    answer = await gate.post("/v1/completions", {...})
    await gate.at_zero()
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from kvgate.app import App
from kvgate.assembly.file import PolicySource
from kvgate.config import Settings, Timeouts
from kvgate_policies.types import ZERO_COST, LedgerView

SOON_S = 15.0
"""For things that should happen within milliseconds; only a broken program takes this long."""


class Gate:
    """A running kvgate and a client of it."""

    def __init__(self, app: App, http: httpx.AsyncClient) -> None:
        self.app = app
        self.http = http

    @property
    def url(self) -> str:
        return self.app.url

    @property
    def view(self) -> LedgerView:
        return self.app.ledger.view()

    @property
    def reserved_blocks(self) -> int:
        return sum(use.reserved.blocks for use in self.view.engines)

    @property
    def reservations(self) -> int:
        return sum(use.reservations for use in self.view.engines)

    async def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> httpx.Response:
        if isinstance(body, bytes | str):
            return await self.http.post(path, content=body, headers=dict(headers or {}))
        return await self.http.post(path, json=body, headers=dict(headers or {}))

    async def until(self, true: Callable[[], bool], what: str = "") -> None:
        """Wait for something that sockets bring about; fails with the ledger's state."""
        try:
            async with asyncio.timeout(SOON_S):
                while not true():
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"never happened: {what or true}; ledger: {self.app.ledger!r}") from None

    async def queued(self, count: int) -> None:
        await self.until(lambda: self.view.queued == count, f"{count} in the queue")

    async def at_zero(self) -> None:
        """Nothing queued, nothing reserved, nobody in the house."""

        def nothing_left() -> bool:
            views = [line.ledger.view() for line in self.app.pools.lines]
            uses = [use for view in views for use in view.engines]
            held = any(use.reserved != ZERO_COST or use.reservations for use in uses)
            return not any(view.queued for view in views) and not held and self.app.gateway.active == 0

        await self.until(nothing_left, "the ledger at zero")


@asynccontextmanager
async def gateway(backends: Iterable[str], *, ready: bool = True, **settings: Any) -> AsyncGenerator[Gate]:
    """Run kvgate on free ports; waits for the first engine unless `ready` is false."""
    settings.setdefault("probe_interval_s", 0.1)
    settings.setdefault("timeouts", Timeouts(draining_hold_s=0.05))
    made = Settings(backends=tuple(backends), port=0, admin_port=0, **settings)
    async with serving(made, ready=ready) as gate:
        yield gate


@asynccontextmanager
async def serving(
    settings: Settings, *, ready: bool = True, source: PolicySource | None = None
) -> AsyncGenerator[Gate]:
    """Run kvgate with these settings; waits for all engines of all pools unless `ready` is false."""
    app = App(settings, source=source)
    async with app.running():
        async with httpx.AsyncClient(base_url=app.url, timeout=60.0) as http:
            gate = Gate(app, http)
            if ready:
                await gate.until(lambda: all_known(app), "all engines known")
            yield gate


def all_known(app: App) -> bool:
    """Every backend of every pool has been found."""
    return all(len(line.engine_pool.available()) >= len(line.spec.backends) for line in app.pools.lines)


def completion(tokens: int = 100, max_tokens: int = 21, **more: Any) -> dict[str, Any]:
    """A completions body with an exactly counted prompt of token ids."""
    return {"model": "tiny", "prompt": [7] * tokens, "max_tokens": max_tokens, **more}


def chat(text: str = "hello the proxy", **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], **more}
