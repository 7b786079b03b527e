"""What engines that schedule by priority are told of each request."""

from __future__ import annotations

import pytest

from kvgate_policies.types import TenantPolicy
from support.gateway import completion, gateway
from support.upstream import EngineFace, ScriptedUpstream, engine_endpoints, respond

pytestmark = pytest.mark.e2e

ANSWER = respond({"choices": [{"text": "a", "finish_reason": "length"}], "usage": {"prompt_tokens": 100}})


def an_engine() -> ScriptedUpstream:
    return ScriptedUpstream(ANSWER, endpoints=engine_endpoints(EngineFace()))


async def told(tenant: TenantPolicy, *, priority: bool, asked: str | None = None) -> str | None:
    """The priority that reaches the engine."""
    headers = {} if asked is None else {"X-Vllm-Priority": asked}
    async with an_engine() as up, gateway([up.url], priority=priority, tenant=tenant) as gate:
        assert (await gate.post("/v1/completions", completion(priority=-5), headers)).status_code == 200
        [request] = up.scripted
        assert request.json["priority"] == -5, "bodies stay as they came"
        await gate.at_zero()
    return request.header("x-vllm-priority")


@pytest.mark.parametrize(("reservation", "number"), [("guaranteed", "0"), ("forecast", "1")])
async def test_forecast_requests_are_to_be_preempted_first(reservation: str, number: str) -> None:
    tenant = TenantPolicy(reservation=reservation)  # type: ignore[arg-type]
    assert await told(tenant, priority=True) == number
    assert await told(tenant, priority=True, asked="-9") == number


async def test_unless_the_pool_says_so_nothing_is_told() -> None:
    assert await told(TenantPolicy(), priority=False) is None
    assert await told(TenantPolicy(), priority=False, asked="7") == "7"


async def test_where_the_policy_only_observes_nothing_is_changed() -> None:
    assert await told(TenantPolicy(mode="observe"), priority=True, asked="7") == "7"
