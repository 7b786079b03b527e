"""What an operator changes while it runs: engines that get no new work, and what holds for a tenant for a while.

Everything that is changed here is shared by all processes and ends by itself or by a word; each change is in the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, HTTPException, Path, Query, Request

from kvgate.admin.lookup import must_be_tenant, pools_chosen, pools_of_engine, tenant_named
from kvgate.admin.models import FOR_DEFAULT, Drained, EngineRef, TenantChange, TenantDetail
from kvgate.admin.problems import told
from kvgate.admin.views import engines_json
from kvgate.config import units
from kvgate.errors import ChangeNotKept, ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kvgate.admin.state import AdminState

ASKED_BY = "x-kvgate-asked-by"
"""Who asked, as told by the front of several workers; believed on its own socket only."""

Name = Annotated[str, Path(description="The name of a tenant.")]
InPool = Annotated[str | None, Query(description="End the change in this pool; without, that in all pools.")]


def change_routes(state: AdminState) -> APIRouter:
    router = APIRouter()
    router.include_router(_of_engines(state))
    router.include_router(_of_tenants(state))
    return router


def _of_engines(state: AdminState) -> APIRouter:
    router = APIRouter(tags=["pools"])

    @router.post("/engines/drain", responses=told(404, 422))
    async def drain(engine: EngineRef) -> Drained:
        """Give the engine no new work, in all processes; what runs there runs on."""
        return await _told(state, engine, state.drain)

    @router.post("/engines/undrain", responses=told(404, 422))
    async def undrain(engine: EngineRef) -> Drained:
        """Give the engine work again, in all processes."""
        return await _told(state, engine, state.undrain)

    return router


def _of_tenants(state: AdminState) -> APIRouter:
    router = APIRouter(tags=["tenants"])

    @router.patch("/tenants/{name}", responses=told(404, 422, 503))
    async def change(name: Name, wanted: TenantChange, request: Request) -> TenantDetail:
        """Change what holds for a tenant, for a while and in all processes. What was changed before in the same place
        stays, and ends with this change; the file is not touched.
        """
        must_be_tenant(state, name)
        pools_chosen(state, wanted.pool)
        try:
            for_s = units.duration_s(wanted.for_ or FOR_DEFAULT)
        except ValueError as error:
            raise HTTPException(422, f"for: {wanted.for_!r} is not allowed; allowed: {error}.") from error
        try:
            await state.tenants.change(name, wanted.pool, wanted.fields(), for_s, asked_by(request))
        except ConfigError as error:
            raise HTTPException(422, "; ".join(str(error).splitlines())) from error
        except ChangeNotKept as error:
            raise _not_kept(error) from error
        return tenant_named(state, name)

    @router.delete("/tenants/{name}", responses=told(404, 503))
    async def end(name: Name, request: Request, pool: InPool = None) -> TenantDetail:
        """End a change of a tenant before its time: the file holds again."""
        must_be_tenant(state, name)
        pools_chosen(state, pool)
        try:
            ended = await state.tenants.end(name, pool, asked_by(request))
        except ChangeNotKept as error:
            raise _not_kept(error) from error
        if not ended:
            where = "in all pools" if pool is None else f"in the pool {pool}"
            raise HTTPException(404, f"The tenant {name!r} has no change {where} that could be ended.")
        return tenant_named(state, name)

    return router


def asked_by(request: Request) -> str:
    """The peer, for the log."""
    peer = request.client.host if request.client else ""
    return peer or request.headers.get(ASKED_BY, "")[:64] or "someone"


def _not_kept(error: ChangeNotKept) -> HTTPException:
    return HTTPException(503, f"Not changed, as far as is known: {error}. Try again.")


async def _told(state: AdminState, engine: EngineRef, tell: Callable[[str, str], Awaitable[bool]]) -> Drained:
    """Tell the pools, and show the engines as they are by now."""
    engine_id = engine.engine_id.rstrip("/")  # as in the settings, where a URL may end with one
    pools = pools_of_engine(state, engine_id, engine.pool)
    everywhere = [await tell(pool.name, engine_id) for pool in pools]
    shown = [
        one for pool in pools for one in engines_json(pool) if engine_id in {one["engine_id"], one["url"]}
    ]
    return Drained(engines=shown, everywhere=all(everywhere))
