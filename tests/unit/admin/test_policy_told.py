"""The policy over the admin port: what it shows of reservations, and what is said to a change that it does not take."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from kvgate.config.layers import Value, Written
from unit.admin.test_admin import Process


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
async def client(process: Process) -> AsyncIterator[httpx.AsyncClient]:
    async with process.client() as client:
        yield client


def say(process: Process, pool: str, **said: object) -> None:
    """Let a new file say something of all tenants of a pool."""
    book = process.tenants._file
    layer = {name: Value(value, f"file: pools.{pool}.{name}") for name, value in said.items()}
    process.tenants._file = replace(book, pools={**book.pools, pool: layer})


async def risks(client: httpx.AsyncClient) -> dict[str, tuple[Any, ...]]:
    """Of each pool: what holds for all its tenants, and for one."""
    told = (await client.get("/admin/policy")).json()
    chat = next(tenant["pools"] for tenant in told["tenants"] if tenant["name"] == "chat")
    detail = (await client.get("/admin/tenants/chat")).json()
    of_chat = {one["pool"]: one["policy"]["risk"]["value"] for one in detail["pools"]}
    return {
        pool["name"]: (
            pool["reservation"], pool["risk"], chat[pool["name"]]["risk"]["value"], of_chat[pool["name"]]
        )
        for pool in told["pools"]
    }  # fmt: skip


async def test_a_risk_is_shown_where_it_has_an_effect(client: httpx.AsyncClient, process: Process) -> None:
    before = await risks(client)
    assert before == {"default": ("forecast", 0.01, 0.01, 0.01), "other": ("forecast", 0.01, 0.01, 0.01)}
    say(process, "default", reservation="guaranteed")
    say(process, "other", risk=0.2)
    assert await risks(client) == {
        "default": ("guaranteed", None, None, None),
        "other": ("forecast", 0.2, 0.2, 0.2),
    }


async def test_a_guaranteed_tenant_has_a_risk_beside_forecasts(
    client: httpx.AsyncClient, process: Process
) -> None:
    book = process.tenants._file
    peaks = {"reservation": Value("guaranteed", "file: tenants.batch.reservation")}
    process.tenants._file = replace(book, tenants={"batch": Written(peaks)})
    told = (await client.get("/admin/tenants/batch")).json()["pools"][0]["policy"]
    assert (told["reservation"]["value"], told["risk"]["value"]) == ("guaranteed", 0.01)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            {"reservation": "guaranteed"},
            "override: reservation: 'guaranteed' is not allowed; allowed: in the policy file alone; at run time only w",
        ),
        ({"risk": 0.6}, "override: risk: 0.6 is not allowed; allowed: in the policy file alone"),
        ({"revocable": True}, "override: revocable: True is not allowed; allowed: in the policy file alone"),
        (
            {"class": "urgent"},
            "body.class: Input should be 'interactive', 'standard' or 'batch', not 'urgent'",
        ),
        ({"mode": "on"}, "body.mode: Input should be 'enforce', 'observe' or 'off', not 'on'"),
    ],
)
async def test_what_cannot_be_changed_is_named_with_its_value_and_what_can(
    client: httpx.AsyncClient, process: Process, body: dict[str, object], said: str
) -> None:
    answer = await client.patch("/admin/tenants/chat", json=body)
    assert answer.status_code == 422
    assert said in answer.json()["detail"]
    assert process.tenants.changes == {}
