"""The metrics page, rendered off the event loop and at most every half second.

Rendering a few hundred series takes tens of milliseconds; on the loop that would stall every stream at each
scrape. So the snapshots are taken on the loop (microseconds), the text is made in a thread, and scrapers
that come together share one page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from kvgate.telemetry.formats import encoder_for

if TYPE_CHECKING:
    from kvgate.clock import Clock
    from kvgate.telemetry.metrics import Telemetry
    from kvgate.telemetry.pools import PoolsTelemetry

FRESH_S = 0.5
"""How old a page may be: well below any scrape interval."""
FORMATS_MAX = 8
"""Pages kept; the format is the client's choice, and there are three in use."""


class MetricsPage:
    def __init__(self, telemetry: Telemetry | PoolsTelemetry, clock: Clock) -> None:
        self._telemetry = telemetry
        self._clock = clock
        self._pages: dict[str, tuple[float, bytes]] = {}
        self._lock = anyio.Lock()

    async def render(self, accept: str) -> tuple[bytes, str]:
        """The page in the format the `Accept` header asks for, and its content type."""
        encode, content_type = encoder_for(accept)
        async with self._lock:
            made_s, page = self._pages.get(content_type, (float("-inf"), b""))
            if self._clock.monotonic() - made_s >= FRESH_S:
                self._telemetry.refresh()
                made_s = self._clock.monotonic()
                page = await anyio.to_thread.run_sync(encode, self._telemetry.registry)
                self._keep(content_type, made_s, page)
        return page, content_type

    def _keep(self, content_type: str, made_s: float, page: bytes) -> None:
        if len(self._pages) >= FORMATS_MAX:
            self._pages.clear()
        self._pages[content_type] = (made_s, page)
