"""The admin port: `/livez`, `/readyz`, `/metrics`, `/admin/*`. Never exposed to tenants.

Probes and metrics need no token; `/admin` does when one is set. Errors are RFC 9457 problems. Everything here
is cheap: a scrape or a person looking must not disturb a stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from kvgate import __version__
from kvgate.admin.bounded import BoundedBodies
from kvgate.admin.page import MetricsPage
from kvgate.admin.problems import handle_problems
from kvgate.admin.routes import admin_routes
from kvgate.clock import Clock, SystemClock

if TYPE_CHECKING:
    from kvgate.admin.state import AdminState

NO_STORE = {"cache-control": "no-store"}


def admin_app(state: AdminState, clock: Clock | None = None) -> FastAPI:
    """The ASGI app of the admin port."""
    app = FastAPI(
        title="kvgate admin",
        version=__version__,
        openapi_url=None,  # it is among the routes that ask for the token
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # a path that is none is told, also to clients that follow nothing
    )
    app.include_router(_probes(state))
    app.include_router(_metrics(MetricsPage(state.telemetry, clock or SystemClock())))
    app.include_router(admin_routes(state))
    handle_problems(app)
    app.add_middleware(BoundedBodies)
    return app


def _probes(state: AdminState) -> APIRouter:
    router = APIRouter(tags=["probes"])

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
    router = APIRouter(tags=["probes"])

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Prometheus or OpenMetrics text, as asked for."""
        body, content_type = await page.render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    return router
