"""The paths under `/admin`: what is, and the few things that can be changed while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from kvgate.admin.changes import Name, change_routes
from kvgate.admin.guard import token_guard
from kvgate.admin.lookup import ledger_views, pool_named, pools_chosen, tenant_named
from kvgate.admin.models import (
    LEDGER_EXAMPLE,
    EnginesView,
    PolicyTenant,
    PolicyView,
    PoolsView,
    QueueView,
    TenantDetail,
    TenantsView,
)
from kvgate.admin.problems import told
from kvgate.admin.tenants import page, queue_view, tenant_view, uses_of, values
from kvgate.admin.views import (
    engines_json,
    file_view,
    identity_view,
    ledger_json,
    pool_json,
    pool_view,
    settings_json,
)

if TYPE_CHECKING:
    from kvgate.admin.state import AdminState

PAGE = 200
"""Tenants on a page; with ten thousand, a whole list would hold up the streams while it is made."""

InPool = Annotated[str | None, Query(description="The name of a pool; without, the first or all.")]
After = Annotated[str | None, Query(description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=PAGE, description="Tenants on a page.")]


def admin_routes(state: AdminState) -> APIRouter:
    guard = Depends(token_guard(state.settings.admin_token))
    router = APIRouter(prefix="/admin", dependencies=[guard], responses=told(401))

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> Response:
        """This API, as OpenAPI."""
        return JSONResponse(request.app.openapi())

    router.include_router(_of_pools(state))
    router.include_router(_of_tenants(state))
    router.include_router(change_routes(state))
    return router


def _of_pools(state: AdminState) -> APIRouter:
    router = APIRouter(tags=["pools"])

    @router.get("/pools")
    async def pools() -> PoolsView:
        """Each pool: its names, its capacity, what is reserved, who waits."""
        return PoolsView(pools=[pool_view(pool, pool.ledger_view()) for pool in state.pools()])

    @router.get("/engines", responses=told(404))
    async def engines(pool: InPool = None) -> EnginesView:
        """Each engine: its state, its capacity and where that is known from, what is reserved on it, its own gauges."""
        return EnginesView(
            engines=[shown for one in pools_chosen(state, pool) for shown in engines_json(one)]
        )

    @router.get(
        "/ledger",
        responses={200: {"content": {"application/json": {"example": LEDGER_EXAMPLE}}}, **told(404)},
    )
    async def ledger(pool: InPool = None) -> dict[str, Any]:
        """What is reserved on each engine of a pool, and the counters of its ledger."""
        chosen = pool_named(state, pool)
        return ledger_json(chosen.name, chosen.ledger_view())

    @router.get("/queue", responses=told(404))
    async def queue(pool: InPool = None) -> QueueView:
        """Who waits, and for what."""
        chosen = pools_chosen(state, pool)
        return QueueView(pools=[queue_view(one.name, one.ledger_view()) for one in chosen])

    @router.get("/settings")
    async def settings() -> dict[str, Any]:
        """The effective settings that the process began with, secrets hidden."""
        return settings_json(state.settings)

    return router


def _of_tenants(state: AdminState) -> APIRouter:
    router = APIRouter(tags=["tenants"])

    @router.get("/tenants")
    async def tenants(after: After = None, limit: Limit = PAGE) -> TenantsView:
        """Every tenant: what holds for it in short, and what it uses now."""
        book, changes, uses = state.tenants.book, state.tenants.standing(), uses_of(ledger_views(state))
        names, following = page(book.names, after, limit)
        return TenantsView(tenants=[tenant_view(name, book, changes, uses) for name in names], next=following)

    @router.get("/tenants/{name}", responses=told(404))
    async def tenant(name: Name) -> TenantDetail:
        """Everything that holds for a tenant, with where each value comes from."""
        return tenant_named(state, name)

    @router.get("/policy")
    async def policy(after: After = None, limit: Limit = PAGE) -> PolicyView:
        """The policy in force, the file and the changes at run time together; no keys, nor what they are known by."""
        book = state.tenants.book
        names, following = page(book.names, after, limit)
        in_force = [pool.name for pool in state.pools()]
        return PolicyView(
            file=file_view(state.policy_file()),
            identity=identity_view(book.identity),
            pools=[pool_json(pool, state.settings, book) for pool in state.pools()],
            tenants=[
                PolicyTenant(name=name, pools={pool: values(name, pool, book) for pool in in_force})
                for name in names
            ],
            next=following,
        )

    return router
