"""What operators and failing engines do to the whole house, seen from the client's side."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest

from kvgate.assembly.file import PolicySource
from kvgate.config import Settings
from kvgate.sim import SimServer
from kvgate_policies.types import TenantPolicy
from support.gateway import Gate, completion, gateway
from support.upstream import (
    Answer,
    EngineFace,
    Pause,
    ScriptedUpstream,
    engine_endpoints,
    hang,
    respond,
    sse,
)

pytestmark = pytest.mark.e2e

USAGE = {"prompt_tokens": 100, "completion_tokens": 2, "total_tokens": 102}
NOT_FOUND = {
    "error": {
        "message": "The model `tiny` does not exist. Valid aliases: other.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }
}
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses")


def whole(text: str = "ab", finish: str = "length") -> Answer:
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return respond({"id": "cmpl-1", "object": "text_completion", "choices": [choice], "usage": USAGE})


def engine(*answers: Answer, **face: Any) -> ScriptedUpstream:
    return ScriptedUpstream(*answers, endpoints=engine_endpoints(EngineFace(**face)))


def asked(path: str, tokens: int, *, stream: bool, model: str = "tiny") -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "stream": stream, "ignore_eos": True}
    if path == "/v1/completions":
        return body | {"prompt": [7] * 20, "max_tokens": tokens}
    if path == "/v1/responses":
        return body | {"input": "hello the proxy", "max_output_tokens": tokens}
    return body | {"messages": [{"role": "user", "content": "hello the proxy"}], "max_tokens": tokens}


def statuses(gate: Gate) -> dict[str, str]:
    return {status.url: str(status.state) for status in gate.app.pool.snapshot()}


class TestAnEngineThatGivesUp:
    """As vLLM on SIGTERM: 200, a finish reason of abort, and an end in good order."""

    @pytest.mark.parametrize("path", PATHS)
    async def test_a_stream_does_not_end_as_if_it_were_whole(self, path: str):
        async with SimServer(model="tiny", profile="fast") as sim, gateway([sim.url]) as gate:
            sim.add_fault("abort=5")
            answer = await gate.post(path, asked(path, 40, stream=True))
            assert answer.status_code == 200
            assert "is incomplete" in answer.text
            for end in ("[DONE]", "message_stop", "response.completed", '"abort"'):
                assert end not in answer.text
            await gate.at_zero()

    @pytest.mark.parametrize("path", PATHS)
    async def test_a_json_answer_is_asked_for_again_elsewhere(self, path: str):
        async with (
            SimServer(model="tiny", profile="fast") as one,
            SimServer(model="tiny", profile="fast") as two,
            gateway([one.url, two.url]) as gate,
        ):
            one.add_fault("abort=5")
            two.add_fault("abort=5")
            answers = [await gate.post(path, asked(path, 40, stream=False)) for _ in range(2)]
            # the first met both faults, the second none
            assert [answer.status_code for answer in answers] == [502, 200]
            assert answers[0].headers["x-kvgate-reason"] == "upstream_failed"
            usage = answers[1].json()["usage"]
            assert usage.get("completion_tokens", usage.get("output_tokens")) == 40
            await gate.at_zero()

    async def test_the_last_event_stands_alone_when_the_chunk_before_ended_within_one(self):
        events = sse(
            [{"choices": [{"index": 0, "text": "a", "finish_reason": None}]}], done=False, whole=False
        )
        torn = b'data: {"choices": [{"index": 0, "text": "b", "finish_r'
        rest = b'eason": "abort"}]}\n\ndata: [DONE]\n\n'
        parts = [b"%x\r\n%s\r\n" % (len(part), part) for part in (torn, rest)]
        answer = (*events, Pause(0.05), parts[0], Pause(0.05), parts[1], b"0\r\n\r\n")
        async with engine(answer) as up, gateway([up.url]) as gate:
            told = await gate.post("/v1/completions", completion(stream=True))
            assert b'"finish_r\n\ndata: {"error"' in told.content
            assert told.content.endswith(b"}}\n\n")
            await gate.at_zero()


class TestModels:
    async def test_one_engine_with_another_model_does_not_shut_out_the_others(self, caplog):
        faces = [EngineFace(), EngineFace()]
        one, two = (ScriptedUpstream(whole(), endpoints=engine_endpoints(face)) for face in faces)
        async with one, two, gateway([one.url, two.url]) as gate:
            with caplog.at_level(logging.INFO, "kvgate.engines"):
                faces[0].model, faces[0].start_time_s = "other", faces[0].start_time_s + 60
                await gate.until(lambda: statuses(gate)[one.url] == "error", "the stranger barred")
            assert statuses(gate)[two.url] == "up"
            assert (await gate.post("/v1/completions", completion())).status_code == 200
            assert f"engine {one.url}: up → error: serves other, the pool serves tiny" in caplog.text
            # and when the last one follows, the pool has moved
            faces[1].model, faces[1].start_time_s = "other", faces[1].start_time_s + 60
            await gate.until(lambda: set(statuses(gate).values()) == {"up"}, "the pool moved")
            assert [card["id"] for card in (await gate.http.get("/v1/models")).json()["data"]] == ["other"]

    async def test_an_engine_that_does_not_know_the_model_yet_said_to_serve_it_is_left_for_another(self):
        async with (
            engine(respond(NOT_FOUND, 404)) as one,
            engine(whole()) as two,
            gateway([one.url, two.url]) as gate,
        ):
            answers = [await gate.post("/v1/completions", completion()) for _ in range(4)]
            assert [answer.status_code for answer in answers] == [200] * 4
            assert one.scripted
            two.answers = [respond(NOT_FOUND, 404)]
            last = await gate.post("/v1/completions", completion())
            assert (last.status_code, last.json()) == (404, NOT_FOUND)
            assert "x-kvgate-reason" not in last.headers
            await gate.at_zero()

    async def test_an_adapter_of_one_engine_is_asked_of_that_one(self):
        async with (
            engine(whole()) as one,
            engine(whole(), adapters=("lora",)) as two,
            gateway([one.url, two.url], tenant=TenantPolicy(queue_wait_s_max=0.3)) as gate,
        ):
            for _ in range(4):
                assert (await gate.post("/v1/completions", completion(model="lora"))).status_code == 200
            assert (len(one.scripted), len(two.scripted)) == (0, 4)
            await gate.app.pool.drain(two.url)
            gone = await gate.post("/v1/completions", completion(model="lora"))
            assert (gone.status_code, gone.headers["x-kvgate-reason"]) == (503, "no_backend")
            assert (await gate.post("/v1/completions", completion())).status_code == 200
            await gate.at_zero()

    @pytest.mark.parametrize("page", [b"<!doctype html><p>hello", b'{"data": []}', b"{}"])
    async def test_a_server_that_is_no_vllm_gets_no_work_whatever_is_given_by_hand(self, page: bytes):
        anything = {path: respond(page) for path in ("/metrics", "/health", "/v1/models")}
        by_hand = {"num_gpu_blocks": 100, "block_size": 16, "max_model_len": 800}
        async with (
            ScriptedUpstream(respond(page), endpoints=anything) as web,
            engine(whole()) as up,
            gateway([web.url, up.url], ready=False, **by_hand) as gate,
        ):
            await gate.until(lambda: statuses(gate) == {web.url: "error", up.url: "up"}, str(statuses(gate)))
            for _ in range(3):
                assert (await gate.post("/v1/completions", completion())).json()["usage"] == USAGE
            assert not web.scripted
            (status,) = (s for s in gate.app.pool.snapshot() if s.url == web.url)
            assert "lists no model at /v1/models" in status.why


class TestNoEngine:
    async def test_who_waited_while_all_engines_went_is_not_told_of_room(self):
        tenant = TenantPolicy(queue_wait_s_max=0.6)
        async with engine(hang(), num_gpu_blocks=5) as up, gateway([up.url], tenant=tenant) as gate:
            running = asyncio.create_task(gate.post("/v1/completions", completion()))
            await gate.until(lambda: len(up.scripted) == 1)
            waiting = asyncio.create_task(gate.post("/v1/completions", completion()))
            await gate.queued(1)
            await up.refuse()
            answers = [await running, await waiting]
            assert [(a.status_code, a.headers["x-kvgate-reason"]) for a in answers] == [
                (503, "no_backend")
            ] * 2
            await gate.at_zero()


class TestOperators:
    async def test_an_engine_is_drained_by_its_url_with_a_slash_and_with_all_its_ranks(self, caplog):
        async with engine(whole(), engines=2, num_gpu_blocks=242) as up, gateway([up.url]) as gate:
            await gate.until(lambda: len(gate.app.pool.available()) == 2, "two ranks")
            async with httpx.AsyncClient(base_url=gate.app.admin_url) as admin:
                with caplog.at_level(logging.INFO, "kvgate.engines"):
                    told = await admin.post("/admin/engines/drain", json={"engine_id": f"{up.url}/"})
                assert [one["state"] for one in told.json()["engines"]] == ["draining"] * 2
                assert f"engine {up.url}#1: up → draining: told to give it no new work" in caplog.text
                refused = await gate.post("/v1/completions", completion())
                assert refused.headers["x-kvgate-reason"] == "no_backend"
                one_rank = await admin.post("/admin/engines/undrain", json={"engine_id": f"{up.url}#0"})
                assert [one["state"] for one in one_rank.json()["engines"]] == ["up"]
                nobody = await admin.post("/admin/engines/drain", json={"engine_id": "x" * 5000})
                assert nobody.status_code == 404
                assert len(nobody.json()["detail"]) < 500
            assert (await gate.post("/v1/completions", completion())).status_code == 200

    async def test_a_reload_says_what_it_did_and_what_it_did_not(self, caplog):
        async with engine(whole()) as one, engine(whole()) as two, gateway([one.url]) as gate:
            wanted = gate.app.settings.model_copy(update={"backends": (two.url,), "max_num_seqs": 7})
            gate.app.policy._source = PolicySource(lambda: wanted)
            with caplog.at_level(logging.INFO, "kvgate"):
                await gate.app.reload()
            assert (
                f"settings reloaded; backends: added {two.url}, removed {one.url}; tenants: as before"
                in caplog.messages
            )
            assert "changed, and taken over only by a restart: max_num_seqs" in caplog.messages
            await gate.until(lambda: statuses(gate) == {two.url: "up"}, "the other backend")

    async def test_a_reader_that_fails_in_a_new_way_does_not_end_what_runs(self, caplog):
        def read() -> Settings:
            raise RecursionError("deep")

        async with engine(whole()) as up, gateway([up.url]) as gate:
            gate.app.policy._source = PolicySource(read)
            await gate.app.reload()
            assert "settings not reloaded, the running ones stay" in caplog.messages
            assert (await gate.post("/v1/completions", completion())).status_code == 200

    async def test_a_bug_while_a_request_is_read_is_an_answer_in_the_clients_dialect(
        self, monkeypatch, caplog
    ):
        def broken(*_: object) -> None:
            raise NameError("no such name")

        monkeypatch.setattr("kvgate.api.calls.parse", broken)
        async with engine(whole()) as up, gateway([up.url]) as gate:
            answer = await gate.post("/v1/messages", {"model": "tiny", "max_tokens": 3})
            assert (answer.status_code, answer.headers["x-kvgate-reason"]) == (500, "internal_error")
            assert answer.json()["type"] == "error"
            assert any(record.exc_info for record in caplog.records)
            await gate.at_zero()
