"""A call as it goes to an engine: one way to build it, whether it is admitted or only passed on."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import httpx

from kvgate.admission.contract import Call, Header
from kvgate.engines.base import Pulse, Target
from kvgate_policies.types import TenantPolicy

PRIORITY_HEADER = b"x-vllm-priority"
"""vLLM takes it before the body's `priority`, so that the body can stay as it came. Lower is sooner."""
GUARANTEED_PRIORITY, FORECAST_PRIORITY = -10, 0
"""vLLM preempts the highest number first. 0 is what it takes where it is told nothing: requests that reach it past
kvgate, audio, beam search. None of those may come before what is guaranteed, so it is this that gets the number of its
own. The distance: a response whose tools vLLM runs itself goes on with a number lower by one."""
URLS_MAX = 4096
"""Engines times the paths of the route table, some thirty."""


def priority_of(tenant: TenantPolicy) -> int:
    """What an engine that has to preempt is told of a tenant's requests.

    Also of one that was granted its peak because forecasts are being learned anew: while it runs it may be taken to
    hold less again, and then a guaranteed one must come before it.
    """
    return GUARANTEED_PRIORITY if tenant.reservation == "guaranteed" else FORECAST_PRIORITY


def forwarded(
    call: Call,
    target: Target,
    body: bytes,
    *,
    connect_s: float,
    read_s: float | None,
    pulse: Pulse | None = None,
    priority: int | None = None,
) -> httpx.Request:
    """`body` in place of the call's own. `read_s` bounds each read after the first one, which whoever sends the
    request bounds itself; None for an answer that comes in one piece, when it is done. `pulse` is the target's,
    where the engine itself has to compute the answer. `priority` replaces what the client asks for.
    """
    passed = call.headers if call.trace is None else call.trace.outgoing(call.headers)
    if priority is not None:
        passed = _with_priority(passed, priority)
    return httpx.Request(
        call.method,
        _url(target.url + call.path),
        headers=[*passed, *((k.encode(), v.encode()) for k, v in target.headers.items())],
        stream=httpx.ByteStream(body),
        extensions={
            "timeout": {
                "connect": connect_s,
                "first_read": None,
                "read": read_s,
                "write": None,
                "pool": None,
            },
            "pulse": pulse,
        },
    )


def _with_priority(headers: Iterable[Header], priority: int) -> list[Header]:
    others = [header for header in headers if header[0] != PRIORITY_HEADER]
    return [*others, (PRIORITY_HEADER, str(priority).encode())]


def _url(text: str) -> httpx.URL:
    """Parsed once: httpx takes longer for a URL than the whole of admission. Queries differ, so they are not kept."""
    return httpx.URL(text) if "?" in text else _url_known(text)


_url_known = lru_cache(URLS_MAX)(httpx.URL)
