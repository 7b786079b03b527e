"""Several models behind one kvgate: names, aliases, adapters, one list of models, and each pool for itself."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvgate.assembly.file import PolicySource
from kvgate.config import load
from kvgate.sim import SimServer
from support.gateway import Gate, serving
from support.upstream import EngineFace, ScriptedUpstream, engine_endpoints, respond

pytestmark = pytest.mark.e2e

FAST = {"KVGATE_PORT": "0", "KVGATE_ADMIN_PORT": "0", "KVGATE_PROBE_INTERVAL": "100ms"}


def policy(small: str, large: str, **more: Any) -> dict[str, Any]:
    pools = {
        "small-chat": {"backends": [small], "aliases": ["quick", "gpt-4o*"]},
        "large-chat": {"backends": [large], "aliases": ["thorough"]},
    }
    return {"version": 1, "pools": pools, **more}


@asynccontextmanager
async def two_pools(folder: Path, **more: Any) -> AsyncGenerator[tuple[Gate, SimServer, SimServer]]:
    async with SimServer(model="tiny-3b") as small, SimServer(model="huge-70b") as large:
        path = folder / "policy.yaml"
        path.write_text(json.dumps(policy(small.url, large.url, **more)))
        source = PolicySource(lambda: load(path, FAST, {}), path)
        async with serving(source.read(), source=source) as gate:
            yield gate, small, large


def body(model: str | None, **more: Any) -> dict[str, Any]:
    named = {} if model is None else {"model": model}
    return {**named, "prompt": [7] * 20, "max_tokens": 4, **more}


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        ("tiny-3b", "tiny-3b"),
        ("small-chat", "tiny-3b"),
        ("quick", "tiny-3b"),
        ("gpt-4o-mini", "tiny-3b"),
        ("huge-70b", "huge-70b"),
        ("large-chat", "huge-70b"),
        ("thorough", "huge-70b"),
    ],
)
async def test_each_name_leads_to_its_pool(tmp_path: Path, asked: str, served: str) -> None:
    async with two_pools(tmp_path) as (gate, *_):
        answer = await gate.post("/v1/completions", body(asked))
        assert (answer.status_code, answer.json()["model"]) == (200, served)
        for endpoint, key in (("/tokenize", "count"), ("/v1/chat/completions", "usage")):
            told = await gate.post(
                endpoint,
                {"model": asked, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3},
            )
            assert told.status_code == 200, told.text
            assert key in told.json()
        await gate.at_zero()


@pytest.mark.parametrize("asked", ["unknown", "Quick", "gpt-4", None])
async def test_a_name_of_no_pool_and_none_at_all_are_unknown(tmp_path: Path, asked: str | None) -> None:
    async with two_pools(tmp_path) as (gate, *_):
        answer = await gate.post("/v1/completions", body(asked))
        assert (answer.status_code, answer.headers["x-kvgate-reason"]) == (404, "unknown_model")
        assert answer.json()["error"]["message"] == f"The model `{asked}` does not exist."


async def test_the_models_of_all_pools_in_one_list(tmp_path: Path) -> None:
    async with two_pools(tmp_path) as (gate, *_):
        cards = {card["id"]: card for card in (await gate.http.get("/v1/models")).json()["data"]}
        assert list(cards) == ["tiny-3b", "huge-70b", "small-chat", "quick", "large-chat", "thorough"]
        for alias, served in (("quick", "tiny-3b"), ("large-chat", "huge-70b")):
            assert cards[alias]["root"] == served
            assert cards[alias]["parent"] is None
            assert cards[alias]["owned_by"] == cards[served]["owned_by"]
            assert cards[alias]["max_model_len"] == cards[served]["max_model_len"]


async def test_adapters_lead_to_their_pool_and_keep_their_card(tmp_path: Path) -> None:
    def engine(model: str, adapter: str, answer: str) -> ScriptedUpstream:
        choice = {"index": 0, "text": "ab", "finish_reason": "length"}
        usage = {"prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 22}
        whole = respond({"id": answer, "object": "text_completion", "choices": [choice], "usage": usage})
        face = EngineFace(model=model, adapters=(adapter,))
        return ScriptedUpstream(whole, endpoints=engine_endpoints(face))

    async with engine("tiny", "tiny-sql", "one") as one, engine("huge", "huge-sql", "two") as two:
        path = tmp_path / "policy.yaml"
        path.write_text(json.dumps(policy(one.url, two.url)))
        async with serving(load(path, FAST, {})) as gate:
            assert (await gate.post("/v1/completions", body("huge-sql"))).json()["id"] == "two"
            assert json.loads(completions(two)[-1])["model"] == "huge-sql"
            assert (await gate.post("/v1/completions", body("quick"))).json()["id"] == "one"
            sent = json.loads(completions(one)[-1])
            assert sent == {**body("quick"), "model": "tiny"}
            cards = {card["id"]: card for card in (await gate.http.get("/v1/models")).json()["data"]}
            assert cards["huge-sql"]["parent"] == "huge"
            assert cards["quick"]["root"] == "tiny"


def completions(upstream: ScriptedUpstream) -> list[bytes]:
    return [seen.body for seen in upstream.requests if seen.path == "/v1/completions"]


async def test_one_pool_without_aliases_knows_the_engines_own_names_only(tmp_path: Path) -> None:
    async with SimServer(model="tiny-3b") as sim:
        path = tmp_path / "policy.yaml"
        path.write_text(json.dumps({"version": 1, "pools": {"small-chat": {"backends": [sim.url]}}}))
        async with serving(load(path, FAST, {})) as gate:
            assert (await gate.post("/v1/completions", body(None))).status_code == 200
            assert (await gate.post("/v1/completions", body("small-chat"))).status_code == 404
            listed = (await gate.http.get("/v1/models")).json()["data"]
            assert [card["id"] for card in listed] == ["tiny-3b"]


async def test_one_pool_with_an_alias_has_it_and_its_own_name(tmp_path: Path) -> None:
    async with SimServer(model="tiny-3b") as sim:
        path = tmp_path / "policy.yaml"
        pools = {"small-chat": {"backends": [sim.url], "aliases": ["quick"]}}
        path.write_text(json.dumps({"version": 1, "pools": pools}))
        async with serving(load(path, FAST, {})) as gate:
            for name in ("quick", "small-chat", "tiny-3b"):
                assert (await gate.post("/v1/completions", body(name))).status_code == 200
            assert (await gate.post("/v1/completions", body("other"))).status_code == 404


async def test_one_page_of_metrics_has_both_pools_and_each_name_once(tmp_path: Path) -> None:
    async with two_pools(tmp_path) as (gate, *_):
        await gate.post("/v1/completions", body("quick"))
        await gate.post("/v1/completions", body("thorough"))
        await gate.post("/v1/completions", body("unknown"))
        async with httpx.AsyncClient(base_url=gate.app.admin_url) as admin:
            page = (await admin.get("/metrics")).text
            openmetrics = await admin.get(
                "/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"}
            )
        assert openmetrics.text.endswith("# EOF\n")
        helps = [line.split()[2] for line in page.splitlines() if line.startswith("# HELP")]
        assert len(helps) == len(set(helps))
        families = {family.name: family for family in text_string_to_metric_families(page)}
        served = {
            sample.labels["pool"]: sample.value
            for sample in families["kvgate_requests"].samples
            if sample.labels["outcome"] == "served"
        }
        assert served == {"small-chat": 1, "large-chat": 1}
        nowhere = [s for s in families["kvgate_requests"].samples if s.labels["pool"] == "none"]
        assert [(s.labels["outcome"], s.value) for s in nowhere] == [("rejected_unknown_model", 1)]
        assert len(families["process_start_time_seconds"].samples) == 1


async def test_a_pool_that_is_down_does_not_take_the_other_with_it(tmp_path: Path) -> None:
    async with two_pools(tmp_path) as (gate, small, _):
        async with httpx.AsyncClient(base_url=gate.app.admin_url) as admin:
            both = (await admin.get("/readyz")).json()
            assert {name: pool["ready"] for name, pool in both["pools"].items()} == {
                "small-chat": True,
                "large-chat": True,
            }
            await gate.app.pools.lines[0].engine_pool.drain(small.url)
            one = await admin.get("/readyz")
            assert one.status_code == 200
            assert one.json()["pools"]["small-chat"]["ready"] is False
        refused = await gate.post("/v1/completions", body("quick"))
        assert (refused.status_code, refused.headers["x-kvgate-reason"]) == (503, "no_backend")
        assert (await gate.post("/v1/completions", body("thorough"))).status_code == 200


async def test_aliases_change_with_the_file(tmp_path: Path) -> None:
    async with two_pools(tmp_path) as (gate, small, large):
        assert (await gate.post("/v1/completions", body("fresh"))).status_code == 404
        changed = policy(small.url, large.url)
        changed["pools"]["large-chat"]["aliases"] = ["fresh"]
        (tmp_path / "policy.yaml").write_text(json.dumps(changed))
        await gate.app.reload()
        answer = await gate.post("/v1/completions", body("fresh"))
        assert (answer.status_code, answer.json()["model"]) == (200, "huge-70b")
        assert (await gate.post("/v1/completions", body("thorough"))).status_code == 404
