"""The admin port: `/livez`, `/readyz`, `/metrics`, `/admin/*`. Never exposed to tenants.

Probes and metrics need no token; `/admin` does when one is set. Errors are RFC 9457 problems. Everything here
is cheap: a scrape or a person looking must not disturb a stream.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException as StarletteHTTPException

from kvgate import __version__
from kvgate.admin.guard import token_guard
from kvgate.admin.page import MetricsPage
from kvgate.admin.views import engine_json, ledger_json, settings_json
from kvgate.clock import Clock, SystemClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kvgate.admin.state import AdminState

NO_STORE = {"cache-control": "no-store"}
SHOWN_CHARS_MAX = 200
"""Of what a client sent, when it is shown to it again."""


class EngineRef(BaseModel):
    """Which engine is meant: its id as in `GET /admin/engines`, or a backend's URL for all engines behind it."""

    model_config = ConfigDict(extra="forbid")

    engine_id: str


def admin_app(state: AdminState, clock: Clock | None = None) -> FastAPI:
    """The ASGI app of the admin port."""
    app = FastAPI(
        title="kvgate admin",
        version=__version__,
        openapi_url="/admin/openapi.json",
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
    )
    app.include_router(_probes(state))
    app.include_router(_metrics(MetricsPage(state.telemetry, clock or SystemClock())))
    app.include_router(_admin(state))
    app.add_exception_handler(StarletteHTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _body_problem)
    return app


def _probes(state: AdminState) -> APIRouter:
    router = APIRouter()

    @router.get("/livez")
    async def livez() -> Response:
        """200 while the event loop runs."""
        return JSONResponse({"alive": True, "version": __version__}, headers=NO_STORE)

    @router.get("/readyz")
    async def readyz() -> Response:
        """200 when new requests can be served, 503 with the reasons when not."""
        ready, parts = state.ready()
        return JSONResponse({"ready": ready, **parts}, 200 if ready else 503, NO_STORE)

    return router


def _metrics(page: MetricsPage) -> APIRouter:
    router = APIRouter()

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Prometheus or OpenMetrics text, as asked for."""
        body, content_type = await page.render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    return router


def _admin(state: AdminState) -> APIRouter:
    guard = Depends(token_guard(state.settings.admin_token))
    router = APIRouter(prefix="/admin", dependencies=[guard])

    @router.get("/ledger")
    async def ledger() -> dict[str, object]:
        """What is reserved, and who waits."""
        return ledger_json(state.ledger_view())

    @router.get("/engines")
    async def engines() -> dict[str, object]:
        """Each engine: its state, its capacity and where that is known from, its own gauges."""
        return {"engines": [engine_json(status) for status in state.engine_statuses()]}

    @router.get("/settings")
    async def settings() -> dict[str, object]:
        """The effective settings, secrets hidden."""
        return settings_json(state.settings)

    @router.post("/engines/drain")
    async def drain(engine: EngineRef) -> dict[str, object]:
        """Give the engine no new work; what runs there runs on."""
        return await _told(state, state.drain, engine.engine_id)

    @router.post("/engines/undrain")
    async def undrain(engine: EngineRef) -> dict[str, object]:
        """Give the engine work again."""
        return await _told(state, state.undrain, engine.engine_id)

    return router


async def _told(state: AdminState, tell: Callable[[str], Awaitable[None]], asked: str) -> dict[str, object]:
    """Tell the pool, and show the engine as it is by now, or the engines if a URL with several was meant."""
    engine_id = asked.rstrip("/")  # as in the settings, where a URL may end with one
    statuses = state.engine_statuses()
    meant = {status.id for status in statuses if engine_id in {status.id, status.url}}
    if not meant:
        ids = ", ".join(status.id for status in statuses)
        raise HTTPException(404, f"No engine {asked[:SHOWN_CHARS_MAX]!r}; there are: {ids or 'none'}.")
    await tell(engine_id)
    told = [engine_json(status) for status in state.engine_statuses() if status.id in meant]
    return told[0] if len(told) == 1 else {"engines": told}


def _http_problem(_: Request, error: Exception) -> Response:
    if not isinstance(error, StarletteHTTPException):
        raise error
    return _problem(error.status_code, str(error.detail), error.headers)


def _body_problem(_: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
    return _problem(422, f'{wrong}. The body is JSON: {{"engine_id": …}}.', None)


def _problem(status: int, detail: str, headers: object) -> Response:
    """An RFC 9457 problem."""
    body = {"title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    given = dict(headers) if isinstance(headers, dict) else {}
    return JSONResponse(body, status, {**given, "content-type": "application/problem+json"})
