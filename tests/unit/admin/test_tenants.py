"""Tenants over the admin port: looking at them, changing them for a while, and what is said to a bad change."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from kvgate.admin.tenants import page
from unit.admin.test_admin import Process


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
async def client(process: Process):
    async with process.client() as client:
        yield client


async def test_every_tenant_with_what_it_uses(client: httpx.AsyncClient) -> None:
    told = (await client.get("/admin/tenants")).json()
    assert [tenant["name"] for tenant in told["tenants"]] == ["batch", "chat"]
    chat = told["tenants"][1]
    assert [use["pool"] for use in chat["pools"]] == ["default", "other"]
    here, there = chat["pools"]
    assert (here["class"], here["blocks"], here["queued"], here["reservations"]) == ("standard", 10, 2, 1)
    assert (there["blocks"], there["queued"]) == (0, 0)
    assert told["next"] is None


async def test_pages(client: httpx.AsyncClient) -> None:
    first = (await client.get("/admin/tenants", params={"limit": 1})).json()
    assert ([t["name"] for t in first["tenants"]], first["next"]) == (["batch"], "batch")
    second = (await client.get("/admin/tenants", params={"limit": 1, "after": "batch"})).json()
    assert ([t["name"] for t in second["tenants"]], second["next"]) == (["chat"], None)
    assert (await client.get("/admin/tenants", params={"limit": 0})).status_code == 422
    assert page(["c", "a", "b"], None, 2) == (["a", "b"], "b")
    assert page(["c", "a", "b"], "c", 2) == ([], None)


async def test_a_change_is_shown_with_its_place_and_ends(client: httpx.AsyncClient, process: Process) -> None:
    answer = await client.patch("/admin/tenants/chat", json={"weight": 6, "class": "batch", "for": "30m"})
    assert answer.status_code == 200
    told = answer.json()
    [change] = told["changes"]
    assert (change["fields"], change["left_s"], change["pool"]) == (
        {"weight": 6.0, "class": "batch"}, 1800.0, None,
    )  # fmt: skip
    weight = told["pools"][0]["policy"]["weight"]
    assert weight == {"value": 6.0, "origin": "override until 2030-01-31T12:00:00Z"}
    assert told["pools"][0]["policy"]["guarantee"]["origin"] == "default"
    assert told["pools"][0]["policy"]["class"]["value"] == "batch"
    assert process.tenants.asked == ["127.0.0.1"]
    ended = await client.delete("/admin/tenants/chat")
    assert (ended.status_code, ended.json()["changes"]) == (200, [])
    again = await client.delete("/admin/tenants/chat", params={"pool": "other"})
    assert (again.status_code, again.json()["detail"]) == (
        404, "The tenant 'chat' has no change in the pool other that could be ended.",
    )  # fmt: skip


async def test_who_asked_is_taken_from_the_front_only_where_there_is_no_peer(
    client: httpx.AsyncClient, process: Process
) -> None:
    forged = {"x-kvgate-asked-by": "somebody else"}
    await client.patch("/admin/tenants/chat", json={"weight": 6}, headers=forged)
    assert process.tenants.asked == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"wait": 6}, "'wait' cannot be changed; allowed: weight, guarantee, limit, limit_tokens, class"),
        ({"weight": 0}, "weight: 0.0 is not allowed; allowed: a number from 0.01 to 1000"),
        ({"weight": "much"}, "weight: 'much' is not allowed"),
        ({"guarantee": "130%"}, "guarantee: '130%' is not allowed"),
        ({"class": "urgent"}, "interactive"),
        ({"weight": 6, "for": "1"}, "for: '1' is not allowed; allowed: a duration"),
        ({"weight": 6, "for": 5}, "for: Input should be a valid string"),
        ({"weight": [6]}, "weight"),
        (["weight"], "valid dictionary"),
    ],
)
async def test_a_bad_change_says_what_is_allowed(
    client: httpx.AsyncClient, process: Process, body: Any, said: str
) -> None:
    answer = await client.patch("/admin/tenants/chat", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert said in answer.json()["detail"]
    assert process.tenants.changes == {}


async def test_unknown_tenants_and_pools_and_a_ledger_that_is_away(
    client: httpx.AsyncClient, process: Process
) -> None:
    for method in ("GET", "PATCH", "DELETE"):
        body = {"json": {"weight": 2}} if method == "PATCH" else {}
        answer = await client.request(method, "/admin/tenants/nobody", **body)  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["detail"]) == (
            404, "No tenant 'nobody'; there are: chat, batch.",
        )  # fmt: skip
    answer = await client.patch("/admin/tenants/chat", json={"weight": 2, "pool": "x"})
    assert (answer.status_code, answer.json()["detail"]) == (404, "No pool 'x'; there are: default, other.")
    process.tenants.away = True
    answer = await client.patch("/admin/tenants/chat", json={"weight": 2})
    assert (answer.status_code, answer.json()["detail"]) == (
        503,
        "Not changed, as far as is known: it is away. Try again.",
    )


async def test_who_waits_and_for_what(client: httpx.AsyncClient) -> None:
    default, other = (await client.get("/admin/queue")).json()["pools"]
    assert (default["pool"], default["queued"], default["kept_free"]) == ("default", 3, ["http://a:1"])
    assert [(one["tenant"], one["waits_for"]) for one in default["tenants"]] == [
        ("chat", "room"),
        ("batch", "its own limit"),
    ]
    assert (default["reserved_blocks"], default["blocks"]) == (40, 100)
    assert (default["reserved_seqs"], default["seqs"]) == (3, 8)
    assert (default["engines_accepting"], default["engines"]) == (1, 1)
    assert (other["pool"], other["tenants"], other["engines"]) == ("other", [], 0)
    assert (await client.get("/admin/queue", params={"pool": "x"})).status_code == 404


async def test_the_pools(client: httpx.AsyncClient) -> None:
    default, other = (await client.get("/admin/pools")).json()["pools"]
    assert (default["name"], default["models"], default["blocks"], default["reserved_blocks"]) == (
        "default", ["tiny"], 100, 40,
    )  # fmt: skip
    assert (other["aliases"], other["engines"], other["engines_accepting"]) == (["o-*"], 1, 0)


async def test_the_policy_in_force(client: httpx.AsyncClient, process: Process) -> None:
    await client.patch("/admin/tenants/chat", json={"weight": 6})
    told = (await client.get("/admin/policy")).json()
    assert told["file"] == {
        "path": "policy.yaml",
        "digest": "abc",
        "taken_at": "2030-01-31T12:00:00+00:00",
        "refused": None,
    }
    assert told["identity"]["source"] == "anonymous"
    batch, chat = told["tenants"]
    assert batch["pools"]["default"]["weight"]["value"] == 1.0
    assert chat["pools"]["default"]["weight"]["value"] == 6.0


async def test_the_schema_has_a_model_for_each_answer_and_an_example_for_each_body(
    client: httpx.AsyncClient,
) -> None:
    schema = (await client.get("/admin/openapi.json")).json()
    models = schema["components"]["schemas"]
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            if not path.startswith("/admin/") or path in {"/admin/settings", "/admin/ledger"}:
                continue
            shown = operation["responses"]["200"]["content"]["application/json"]["schema"]
            assert shown["$ref"].rpartition("/")[2] in models, (method, path)
            assert "401" in operation["responses"], path
            assert operation["description"], path
    for name in ("EngineRef", "TenantChange"):
        assert models[name]["examples"]
    assert models["TenantChange"]["additionalProperties"] is False
    assert "for" in models["TenantChange"]["properties"]
    assert "class" in models["TenantUseView"]["properties"]
