"""A call as it goes to an engine: one way to build it, whether it is admitted or only passed on."""

from __future__ import annotations

from functools import lru_cache

import httpx

from kvgate.admission.contract import Call
from kvgate.engines.base import Target

URLS_MAX = 4096
"""Engines times the paths of the route table, some thirty."""


def forwarded(
    call: Call, target: Target, body: bytes, *, connect_s: float, read_s: float | None
) -> httpx.Request:
    """`body` in place of the call's own. `read_s` bounds each read after the first one, which whoever sends the
    request bounds itself; None for an answer that comes in one piece, when it is done.
    """
    return httpx.Request(
        call.method,
        _url(target.url + call.path),
        headers=[*call.headers, *((k.encode(), v.encode()) for k, v in target.headers.items())],
        stream=httpx.ByteStream(body),
        extensions={
            "timeout": {
                "connect": connect_s,
                "first_read": None,
                "read": read_s,
                "write": None,
                "pool": None,
            }
        },
    )


def _url(text: str) -> httpx.URL:
    """Parsed once: httpx takes longer for a URL than the whole of admission. Queries differ, so they are not kept."""
    return httpx.URL(text) if "?" in text else _url_known(text)


_url_known = lru_cache(URLS_MAX)(httpx.URL)
