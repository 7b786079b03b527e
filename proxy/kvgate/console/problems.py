"""Refusals of the console, as RFC 9457 problems, and the headers that all its answers have."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

GUARDS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Scripts, styles and connections of this origin only, and no page around ours that could steer a click."""
NO_STORE = {"cache-control": "no-store", **GUARDS}


def problem(status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    body = {"title": status.phrase, "status": int(status), "detail": detail}
    return JSONResponse(
        body, status, {**NO_STORE, **(headers or {}), "content-type": "application/problem+json"}
    )
