"""What engines that schedule by priority are told of each request."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.api.rewrite import MEMBERS_MAX
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


@pytest.mark.parametrize(("reservation", "number"), [("guaranteed", "-10"), ("forecast", "0")])
async def test_forecast_requests_are_to_be_preempted_first(reservation: str, number: str) -> None:
    tenant = TenantPolicy(reservation=reservation)  # type: ignore[arg-type]
    assert await told(tenant, priority=True) == number
    assert await told(tenant, priority=True, asked="-9") == number


async def test_unless_the_pool_says_so_nothing_is_told() -> None:
    assert await told(TenantPolicy(), priority=False) is None
    assert await told(TenantPolicy(), priority=False, asked="7") == "7"


async def test_where_the_policy_only_observes_nothing_is_changed() -> None:
    assert await told(TenantPolicy(mode="observe"), priority=True, asked="7") == "7"


BODY_ALONE: dict[str, dict[str, Any]] = {
    "/v1/chat/completions/batch": {
        "model": "tiny",
        "messages": [[{"role": "user", "content": text}] for text in ("one", "two")],
        "max_tokens": 21,
    },
    "/inference/v1/generate": {
        "model": "tiny",
        "token_ids": [7] * 100,
        "sampling_params": {"max_tokens": 21},
    },
}
"""What vLLM reads no header of."""


async def written(path: str, tenant: TenantPolicy, *, priority: bool = True) -> Any:
    """The priority in the body that reaches the engine, where the client asks for -5."""
    asked = BODY_ALONE[path] | {"priority": -5}
    async with an_engine() as up, gateway([up.url], priority=priority, tenant=tenant) as gate:
        assert (await gate.post(path, asked)).status_code == 200
        [request] = up.scripted
        await gate.at_zero()
    assert request.json | {"priority": -5} == asked, "all else stays"
    return request.json["priority"]


@pytest.mark.parametrize("path", BODY_ALONE)
async def test_where_no_header_is_read_the_body_says_it(path: str) -> None:
    assert await written(path, TenantPolicy(reservation="guaranteed")) == -10
    assert await written(path, TenantPolicy(reservation="forecast")) == 0


@pytest.mark.parametrize("path", BODY_ALONE)
async def test_nor_is_that_body_changed_for_nothing(path: str) -> None:
    assert await written(path, TenantPolicy(), priority=False) == -5
    assert await written(path, TenantPolicy(mode="observe")) == -5


@pytest.mark.parametrize("path", BODY_ALONE)
async def test_what_it_cannot_be_written_into_is_refused(path: str) -> None:
    """Else its client's own number would reach the engine."""
    crowded = BODY_ALONE[path] | {f"x{i}": 0 for i in range(MEMBERS_MAX)}
    async with an_engine() as up, gateway([up.url], priority=True) as gate:
        answer = await gate.post(path, crowded)
        assert answer.status_code == 400
        assert "priority" in answer.json()["error"]["message"]
        assert up.scripted == []
