"""One look at one backend over HTTP: the thin shell around the readers. Decides nothing.

Every question is bounded in time and size and answers with a value: a backend that is gone is an expected
end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import msgspec

from kvgate.engines.health import Seen
from kvgate.engines.metrics import Metrics, read_metrics
from kvgate.engines.models import Card, read_models

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""A scrape of one engine is 70 KB; sixty-four ranks with many adapters stay below."""
CANARY_TIMEOUT_S = 5.0
"""One token of a short prompt: longer means the engine is loaded, which is no answer to the question."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one probe found."""

    seen: Seen
    """PROBE_GOOD, PROBE_REFUSED, PROBE_UNHEALTHY or PROBE_SILENT."""
    metrics: Metrics | None = None
    """None when there was no readable `/metrics`."""
    error: str | None = None
    """What was wrong, for people; may be set on a good probe too."""


class Prober:
    """Asks one backend."""

    def __init__(
        self,
        http: Callable[[], httpx.AsyncClient],
        url: str,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> None:
        """`http` gives the client of the moment; `timeout_s` bounds a question to the end of its answer."""
        self._http = http
        self._url = url
        self._headers = {"accept-encoding": "identity", **headers}
        self._timeout_s = timeout_s

    async def look(self) -> Reading:
        """`/metrics`; where it gives nothing, `/health`. A backend without metrics is not thereby ill."""
        scraped = await self._get("/metrics")
        if isinstance(scraped, bytes):
            return _scraped(scraped)
        if scraped.seen is Seen.PROBE_REFUSED:
            return scraped
        health = await self._get("/health")
        if isinstance(health, bytes):
            return Reading(Seen.PROBE_GOOD, error=scraped.error)
        return replace(health, error=f"{scraped.error}; {health.error}")

    async def glance(self) -> Reading:
        """`/health` alone, which costs the backend next to nothing."""
        health = await self._get("/health")
        return Reading(Seen.PROBE_GOOD) if isinstance(health, bytes) else health

    async def models(self) -> tuple[Card, ...] | Reading:
        """The served models, or what went wrong: `PROBE_GOOD` when it answered with something else."""
        answer = await self._get("/v1/models")
        if isinstance(answer, Reading):
            return answer
        try:
            return read_models(answer)
        except ValueError as error:
            return Reading(Seen.PROBE_GOOD, error=str(error))

    async def canary(self, model: str | None, headers: Mapping[str, str]) -> Seen:
        """Ask for one token. An engine that drains answers at once, with 200, without it, and "abort"."""
        body = {"model": model, "prompt": ".", "max_tokens": 1, "temperature": 0}
        try:
            with anyio.fail_after(CANARY_TIMEOUT_S):
                response = await self._http().post(
                    f"{self._url}/v1/completions",
                    json=body,
                    headers={**self._headers, **headers},
                    timeout=None,
                )
        except httpx.ConnectError:
            return Seen.PROBE_REFUSED
        except TimeoutError:
            return Seen.CANARY_SILENT
        except httpx.TransportError:
            return Seen.CANARY_UNCLEAR
        return _canary(response) if response.status_code == 200 else Seen.CANARY_UNCLEAR

    async def _get(self, path: str) -> bytes | Reading:
        """The body of a 200, else why there is none."""
        try:
            with anyio.fail_after(self._timeout_s):
                return await self._read(path)
        except TimeoutError:
            return Reading(Seen.PROBE_SILENT, error=f"GET {path}: no answer in {self._timeout_s:g} s")
        except httpx.ConnectError as error:
            return Reading(Seen.PROBE_REFUSED, error=f"GET {path}: {error}")
        except (httpx.TransportError, httpx.DecodingError) as error:
            return Reading(Seen.PROBE_SILENT, error=f"GET {path}: {type(error).__name__}: {error}")

    async def _read(self, path: str) -> bytes | Reading:
        async with self._http().stream(
            "GET", self._url + path, headers=self._headers, timeout=None, follow_redirects=False
        ) as response:
            if response.status_code != 200:
                seen = Seen.PROBE_UNHEALTHY if response.status_code >= 500 else Seen.PROBE_SILENT
                return Reading(seen, error=f"GET {path}: HTTP {response.status_code}")
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > ANSWER_BYTES_MAX:
                    return Reading(Seen.PROBE_SILENT, error=f"GET {path}: more than {ANSWER_BYTES_MAX} bytes")
            return bytes(body)


def _scraped(text: bytes) -> Reading:
    try:
        metrics = read_metrics(text.decode("utf-8", "replace"))
    except ValueError as error:
        return Reading(Seen.PROBE_GOOD, error=f"GET /metrics: unreadable: {error}")
    return Reading(Seen.PROBE_GOOD, metrics, _complaint(metrics))


def _complaint(metrics: Metrics) -> str | None:
    if metrics.untrue:
        return f"GET /metrics: numbers that can't be true, left out: {', '.join(metrics.untrue)}"
    if metrics.cache is None and not metrics.gauges:
        return "GET /metrics: no vLLM metrics in it (--disable-log-stats?)"
    return None


def _canary(response: httpx.Response) -> Seen:
    try:
        answer: Any = msgspec.json.decode(response.content)
        choice = answer["choices"][0]
        reason, text = choice.get("finish_reason"), choice.get("text")
    except (msgspec.DecodeError, KeyError, IndexError, TypeError, AttributeError):
        return Seen.CANARY_UNCLEAR
    if reason == "abort":
        return Seen.CANARY_ABORTED
    return Seen.CANARY_ALIVE if reason in {"length", "stop"} or text else Seen.CANARY_UNCLEAR
