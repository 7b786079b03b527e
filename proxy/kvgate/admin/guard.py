"""The bearer token of /admin."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from fastapi import HTTPException, Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def token_guard(token: str | None) -> Callable[[Request], Awaitable[None]]:
    """A dependency that lets through who has the token; everybody when there is none.

    The comparison takes the same time wherever the first difference is.
    """

    async def check(request: Request) -> None:
        if token is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode(), token.encode())
        if not (same and scheme.lower() == "bearer"):
            raise HTTPException(
                401,
                "This needs the admin token: Authorization: Bearer … (KVGATE_ADMIN_TOKEN).",
                {"www-authenticate": "Bearer"},
            )

    return check
