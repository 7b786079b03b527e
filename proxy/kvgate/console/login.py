"""Logging in and out of the console: the admin token once, then a cookie.

A wrong token costs one of a bounded number of attempts; between the look at that number and the comparison nothing
waits, so that many tries at once are no more than many tries.
"""

from __future__ import annotations

import math
import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import JSONResponse, Response

from kvgate.admin.bounded import bounded_body
from kvgate.console.access import is_of_our_page
from kvgate.console.attempts import Attempts
from kvgate.console.problems import NO_STORE, problem
from kvgate.console.session import set_cookie

if TYPE_CHECKING:
    from starlette.requests import Request

    from kvgate.clock import Clock
    from kvgate.console.access import Access

LOGIN_BYTES_MAX = 4096
"""Of the body of a login: a token, with room to spare."""


class Login:
    def __init__(self, access: Access, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._attempts = Attempts()

    async def state(self, request: Request) -> Response:
        """What this browser may do."""
        until = self._access.looks_until(request)
        told = {
            "needs_login": self._access.needs_login,
            "may_look": until is not None,
            "may_change": until is not None and self._access.needs_login,
        }
        return JSONResponse(told, headers=NO_STORE)

    async def log_in(self, request: Request) -> Response:
        if not self._access.needs_login:
            return problem(HTTPStatus.CONFLICT, "No admin token is set, so there is nothing to log in with.")
        if not is_of_our_page(request):
            return problem(HTTPStatus.FORBIDDEN, "Logins come from the console's own page.")
        return self._answer(request, await _token_in(request))

    def _answer(self, request: Request, token: str) -> Response:
        peer, now_s = request.client.host if request.client else "", self._clock.monotonic()
        if wait_s := math.ceil(self._attempts.retry_after_s(peer, now_s)):
            detail = f"Too many wrong tokens. Try again in {wait_s} s."
            return problem(HTTPStatus.TOO_MANY_REQUESTS, detail, {"retry-after": str(wait_s)})
        if not self._access.is_token(token):
            self._attempts.failed(peer, now_s)
            return problem(HTTPStatus.FORBIDDEN, "This is not the admin token.")
        return _with_cookie(self._access.session(secrets.token_urlsafe(16)), request)

    async def log_out(self, request: Request) -> Response:
        """The browser forgets the session; others that have it end by themselves, or with the token."""
        if not is_of_our_page(request):
            return problem(HTTPStatus.FORBIDDEN, "This comes from the console's own page.")
        return _with_cookie("", request)


def _with_cookie(session: str, request: Request) -> Response:
    cookie = set_cookie(session, secure=_is_tls(request))
    return JSONResponse({"may_change": bool(session)}, headers={**NO_STORE, "set-cookie": cookie})


async def _token_in(request: Request) -> str:
    """What a login says; empty where that makes no sense."""
    body = await bounded_body(request, LOGIN_BYTES_MAX)
    if body is None:
        return ""
    try:
        told = msgspec.json.decode(body, type=dict[str, str])
    except msgspec.MsgspecError:
        return ""
    return told.get("token", "")


def _is_tls(request: Request) -> bool:
    """Here, or as told by whoever ends TLS in front: a wrong word only costs its sender the session."""
    return "https" in {request.url.scheme, request.headers.get("x-forwarded-proto", "")}
