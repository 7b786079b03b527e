"""A bound on what is read of a request's body on the admin port.

The framework reads a body before it asks whether its sender has the token, so without this whoever reaches the port
could fill the memory.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi import HTTPException

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX = 64 * 1024
"""Of a request to `/admin`: the name of an engine, a dozen fields of a tenant."""
TOO_LARGE = f"At most {BODY_BYTES_MAX} bytes."


async def bounded_body(request: Request, bytes_max: int) -> bytes | None:
    """None for one that is larger, whose rest is not read."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > bytes_max:
            return None
    return body


class BoundedBodies:
    """ASGI middleware: who reads more of a body than that gets an HTTPException 413 in its place."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = 0

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > BODY_BYTES_MAX:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TOO_LARGE)
            return message

        await self._app(scope, bounded, send)
