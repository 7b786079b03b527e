"""`/console` in front of the admin port's application, which gets everything else.

What the page reads or changes beyond its stream goes to `/console/admin/…`, which is `/admin/…` for somebody who is
logged in: the same functions, the same checks, the same lines in the log. The cookie is of use under `/console`
alone, so it never travels with a client's request, and `/admin` knows nothing of it.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from kvgate.console.access import SAFE, Access
from kvgate.console.files import PAGE, read_files
from kvgate.console.live import EventStream, Snapshots, Viewers
from kvgate.console.login import Login
from kvgate.console.problems import NO_STORE, problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from kvgate.clock import Clock
    from kvgate.console.look import View

ROOT = "/console"


class Console:
    """An ASGI application; `close` ends the streams of those who look, before the server is told to stop."""

    def __init__(
        self, behind: ASGIApp, view: View, token: str | None, clock: Clock, access: Access | None = None
    ) -> None:
        """`behind` is the admin port's application, `token` the one that it asks for."""
        self._behind = behind
        self._token = token
        self._access = access or Access(token)
        self._snapshots = Snapshots(view, clock)
        self._viewers = Viewers(self._snapshots)
        self._files = read_files()
        self._pages = Starlette(
            routes=self._routes(Login(self._access, clock)), exception_handlers={HTTPException: _as_problem}
        )

    def _routes(self, login: Login) -> list[Route]:
        return [
            Route(f"{ROOT}/session", login.state, methods=["GET"]),
            Route(f"{ROOT}/session", login.log_in, methods=["POST"]),
            Route(f"{ROOT}/session", login.log_out, methods=["DELETE"]),
            Route(f"{ROOT}/snapshot", self._snapshot),
            Route(f"{ROOT}/events", self._events),
            Route(f"{ROOT}/{{name}}", self._file),
            Route(f"{ROOT}/", self._file),
            Route(ROOT, _to_page),
        ]

    def close(self) -> None:
        self._viewers.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path == ROOT or path.startswith(f"{ROOT}/")):
            await self._behind(scope, receive, send)
        elif path.startswith(f"{ROOT}/admin/"):
            await self._operate(scope, receive, send)
        else:
            await self._pages(scope, receive, send)

    async def _file(self, request: Request) -> Response:
        file = self._files.get(request.path_params.get("name", PAGE))
        return file.answer(request) if file else problem(HTTPStatus.NOT_FOUND, "There is no such file.")

    async def _snapshot(self, request: Request) -> Response:
        if self._access.looks_until(request) is None:
            return _log_in_first()
        snapshot = await self._snapshots.now()
        if snapshot is None:
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, "Nobody can tell at the moment.")
        return Response(snapshot, headers={**NO_STORE, "content-type": "application/json"})

    async def _events(self, request: Request) -> Response:
        until = self._access.looks_until(request)
        if until is None:
            return _log_in_first()
        if self._viewers.is_full:
            headers = {"retry-after": "10"}
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, "As many look already as may.", headers)
        if request.method == "HEAD":
            return Response(headers=NO_STORE, media_type=EventStream.media_type)
        return EventStream(self._viewers, lambda: self._access.is_over(until))

    async def _operate(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`/admin` with the token, for somebody who may."""
        refusal = self._refusal(Request(scope))
        await (refusal or self._as_admin)(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        if self._access.looks_until(request) is None:
            return _log_in_first()
        if request.method in SAFE or self._access.may_change(request):
            return None
        if self._access.needs_login:
            return problem(HTTPStatus.FORBIDDEN, "Changes come from the console's own page.")
        return problem(HTTPStatus.FORBIDDEN, "Read-only: no admin token is set (KVGATE_ADMIN_TOKEN).")

    async def _as_admin(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(ROOT)
        raw = scope.get("raw_path", scope["path"].encode()).removeprefix(ROOT.encode())
        headers = [pair for pair in scope["headers"] if pair[0] not in {b"authorization", b"cookie"}]
        if self._token is not None:
            headers.append((b"authorization", b"Bearer " + self._token.encode()))
        await self._behind({**scope, "path": path, "raw_path": raw, "headers": headers}, receive, send)


async def _to_page(_: Request) -> Response:
    return RedirectResponse(f"{ROOT}/", HTTPStatus.PERMANENT_REDIRECT, NO_STORE)


def _as_problem(_: Request, error: Exception) -> Response:
    """What no route takes, in the words and with the headers of all the rest."""
    if not isinstance(error, HTTPException):
        raise error
    return problem(HTTPStatus(error.status_code), error.detail, error.headers)


def _log_in_first() -> Response:
    detail = "Log in with the admin token first, or send it: Authorization: Bearer …"
    return problem(HTTPStatus.UNAUTHORIZED, detail, {"www-authenticate": "Bearer"})
