"""The line of one request through the whole house: every good and bad way it can go, on real sockets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kvgate.config import Timeouts
from kvgate_policies.types import TenantPolicy
from support.gateway import Gate, chat, completion, gateway
from support.upstream import (
    Answer,
    End,
    EngineFace,
    Pause,
    ScriptedUpstream,
    byte_by_byte,
    chunked,
    cut,
    engine_endpoints,
    hang,
    head,
    reset,
    respond,
    sse,
)

pytestmark = pytest.mark.e2e

BUSY = {
    "error": {
        "message": "The engine is currently busy and cannot accept new requests. Please try again later or on a "
        "different instance.",
        "type": "Service Unavailable",
        "param": None,
        "code": 503,
    }
}
USAGE = {"prompt_tokens": 100, "completion_tokens": 2, "total_tokens": 102}
WHOLE = {
    "id": "cmpl-1",
    "object": "text_completion",
    "model": "tiny",
    "choices": [{"index": 0, "text": " ab", "finish_reason": "length"}],
    "usage": USAGE,
}


def piece(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"id": "cmpl-1", "choices": [{"index": 0, "text": text, "finish_reason": finish}]}


def engine(*answers: Answer, face: EngineFace | None = None) -> ScriptedUpstream:
    return ScriptedUpstream(*answers, endpoints=engine_endpoints(face or EngineFace()))


def held_stream(go: asyncio.Event) -> Answer:
    """First event at once; the rest when `go` is set."""
    first, *rest = sse([piece("a"), piece("b", "length")])
    return (first, rest[0], go, *rest[1:])


def asked_by_clients(up: ScriptedUpstream) -> list[Any]:
    """Without the one-token questions that the pool asks an engine it suspects."""
    return [seen for seen in up.scripted if seen.header("x-request-id")]


async def test_a_json_answer_passes_unchanged_and_everything_is_given_back():
    async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate:
        body = b'{ "model": "tiny",\n "prompt": [1,2,3], "max_tokens": 4, "x_unknown": 1.50 }'
        answer = await gate.post("/v1/completions?a=b%20c", body, {"x-request-id": "abc-1", "x-mine": "kept"})
        assert answer.status_code == 200
        assert answer.json() == WHOLE
        assert answer.headers["x-request-id"] == "abc-1"
        assert int(answer.headers["x-kvgate-queue-ms"]) >= 0
        assert "x-kvgate-max-tokens" not in answer.headers
        seen = up.scripted[0]
        assert seen.body == body
        assert seen.path == "/v1/completions?a=b%20c"
        assert (seen.header("x-mine"), seen.header("x-request-id")) == ("kept", "abc-1")
        await gate.at_zero()
        assert gate.view.totals["grants"] == 1


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_stream_fed_byte_by_byte_passes_unchanged(path: str):
    events: list[Any] = [piece("é\u4e2d"), piece("b"), {"choices": [], "usage": USAGE}]
    whole = sse(events)
    async with engine(byte_by_byte(whole)) as up, gateway([up.url]) as gate:
        body = completion(stream=True) if "chat" not in path else chat(stream=True, max_tokens=5)
        answer = await gate.post(path, body)
        expected = (
            b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events) + b"data: [DONE]\n\n"
        )
        assert answer.content == expected
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        await gate.at_zero()


async def test_what_does_not_fit_waits_in_order_and_never_more_than_fit_are_forwarded():
    go = asyncio.Event()
    face = EngineFace(num_gpu_blocks=41)  # 40 usable blocks: ten requests of 4 (100 + 21 - 1 = 120 slots)
    async with engine(held_stream(go), face=face) as up, gateway([up.url]) as gate:
        order: list[int] = []

        async def one(number: int) -> int:
            answer = await gate.post(
                "/v1/completions", completion(stream=True), {"x-request-id": f"r{number}"}
            )
            order.append(number)
            return answer.status_code

        async with asyncio.TaskGroup() as tasks:
            sent = []
            for number in range(30):
                sent.append(tasks.create_task(one(number)))
                await gate.until(lambda n=number: gate.view.totals["arrivals"] == n + 1)  # type: ignore[misc]
            await gate.queued(20)
            assert gate.reserved_blocks == 40
            assert len(up.scripted) == 10
            go.set()
        assert [task.result() for task in sent] == [200] * 30
        assert [seen.header("x-request-id") for seen in up.scripted] == [f"r{n}" for n in range(30)]
        await gate.at_zero()


class TestOutputLimit:
    async def forwarded(self, path: str, body: dict[str, Any], **settings: Any) -> tuple[dict[str, Any], Any]:
        async with engine(respond(WHOLE)) as up, gateway([up.url], **settings) as gate:
            answer = await gate.post(path, body)
            assert answer.status_code == 200, answer.text
            return up.scripted[0].json, answer.headers.get("x-kvgate-max-tokens")

    @pytest.mark.parametrize("asked", [None, 2047, 2048])
    async def test_unset_and_window_sized_get_the_default(self, asked: int | None):
        body = chat() if asked is None else chat(max_completion_tokens=asked)
        sent, header = await self.forwarded(
            "/v1/chat/completions", body, tenant=TenantPolicy(max_tokens_default=64), prompt_tokens="backend"
        )
        field = "max_tokens" if asked is None else "max_completion_tokens"
        assert header == "64"
        assert sent == body | {sent_field(sent): 64}
        assert asked is None or sent[field] == 64

    async def test_the_ruling_field_is_the_one_vllm_reads(self):
        body = chat(max_tokens=1000, max_completion_tokens=900)
        sent, header = await self.forwarded(
            "/v1/chat/completions", body, tenant=TenantPolicy(max_tokens_cap=50)
        )
        assert header == "50"
        assert sent["max_completion_tokens"] == 50

    async def test_a_value_above_the_window_goes_through_for_vllm_to_refuse(self):
        sent, header = await self.forwarded("/v1/completions", completion(max_tokens=5000))
        assert (sent["max_tokens"], header) == (5000, None)

    async def test_completions_unset_is_sixteen_and_is_not_rewritten(self):
        body = {"model": "tiny", "prompt": [1] * 17}
        async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate:
            await gate.post("/v1/completions", body)
            assert up.scripted[0].json == body


def sent_field(sent: dict[str, Any]) -> str:
    return "max_completion_tokens" if "max_completion_tokens" in sent else "max_tokens"


class TestRefusals:
    async def test_never_fits_is_a_400_at_once_that_no_sdk_retries(self):
        face = EngineFace(num_gpu_blocks=65)
        async with engine(respond(WHOLE), face=face) as up, gateway([up.url]) as gate:
            too_long = await gate.post("/v1/completions", completion(tokens=2048))
            too_wide = await gate.post("/v1/completions", completion(tokens=1000, max_tokens=500, n=3))
            for answer in (too_long, too_wide):
                assert answer.status_code == 400
                assert answer.headers["x-should-retry"] == "false"
                assert answer.headers["x-kvgate-reason"] == "never_fits"
                assert answer.json()["error"]["code"] == "context_length_exceeded"
                assert "retry-after" not in answer.headers
            assert "2048" in too_long.json()["error"]["message"]
            assert not up.scripted
            await gate.at_zero()

    async def test_never_fits_is_judged_by_one_engine_not_by_the_sum(self):
        small = EngineFace(num_gpu_blocks=33, max_model_len=1024)
        async with (
            engine(respond(WHOLE), face=small) as one,
            engine(respond(WHOLE), face=small) as two,
            gateway([one.url, two.url]) as gate,
        ):
            answer = await gate.post("/v1/completions", completion(tokens=500, max_tokens=100, n=8))
            assert answer.headers["x-kvgate-reason"] == "never_fits"

    async def test_an_engine_of_another_size_takes_what_the_small_one_cannot(self):
        small, large = EngineFace(num_gpu_blocks=5), EngineFace(num_gpu_blocks=41)
        async with (
            engine(respond(WHOLE), face=small) as one,
            engine(respond(WHOLE), face=large) as two,
            gateway([one.url, two.url]) as gate,
        ):
            for _ in range(4):
                answer = await gate.post("/v1/completions", completion(tokens=300, max_tokens=100))
                assert answer.status_code == 200
            assert (len(one.scripted), len(two.scripted)) == (0, 4)

    async def test_queue_full_and_queue_timeout_say_when_to_come_back(self):
        tenant = TenantPolicy(queue_depth_max=1, queue_wait_s_max=0.4)
        async with engine(hang(), face=EngineFace(num_gpu_blocks=5)) as up:
            async with gateway([up.url], tenant=tenant) as gate:
                running = asyncio.create_task(gate.post("/v1/completions", completion()))
                await gate.until(lambda: len(up.scripted) == 1)
                waiting = asyncio.create_task(gate.post("/v1/completions", completion()))
                await gate.queued(1)
                full = await gate.post("/v1/completions", completion())
                late = await waiting
                for answer, reason in ((full, "queue_full"), (late, "queue_timeout")):
                    assert answer.status_code == 429
                    assert answer.headers["x-kvgate-reason"] == reason
                    assert 1 <= int(answer.headers["retry-after"]) <= 60
                    assert 0 < int(answer.headers["retry-after-ms"]) <= 60_000
                    assert answer.json()["error"]["type"] == "rate_limit_error"
                running.cancel()
                await gate.at_zero()
                assert len(up.scripted) == 1

    async def test_no_backend_is_503_with_retry_after(self):
        async with gateway(["http://127.0.0.1:9"], ready=False) as gate:
            answer = await gate.post("/v1/completions", completion())
            assert (answer.status_code, answer.headers["x-kvgate-reason"]) == (503, "no_backend")
            assert int(answer.headers["retry-after"]) >= 1

    async def test_an_unknown_model_is_vllms_404(self):
        async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate:
            answer = await gate.post("/v1/completions", completion() | {"model": "nope"})
            error = answer.json()["error"]
            assert (answer.status_code, error["type"], error["param"]) == (404, "NotFoundError", "model")
            assert "`nope` does not exist" in error["message"]
            assert not up.scripted

    async def test_draining_refuses_new_work_and_answers_the_queue(self):
        go = asyncio.Event()
        async with (
            engine(held_stream(go), face=EngineFace(num_gpu_blocks=5)) as up,
            gateway([up.url]) as gate,
        ):
            running = asyncio.create_task(gate.post("/v1/completions", completion(stream=True)))
            await gate.until(lambda: len(up.scripted) == 1)
            waiting = asyncio.create_task(gate.post("/v1/completions", completion()))
            await gate.queued(1)
            drained = asyncio.create_task(gate.app.drain())
            queued = await waiting
            fresh = await gate.post("/v1/completions", completion())
            assert [(a.status_code, a.headers["x-kvgate-reason"]) for a in (queued, fresh)] == [
                (503, "draining")
            ] * 2
            assert not drained.done()
            go.set()
            assert (await running).content.endswith(b"[DONE]\n\n")
            await drained


BAD_BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe{}",
    b'{"model": "tiny", "prompt": "a"} trailing',
    b'{"model": "tiny", "prompt": "' + b"\xc3" + b'"}',
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b"[" * 1_000_000,
    b'{"model": "tiny", "prompt": 7}',
    b'{"model": 7, "prompt": "a"}',
    b'{"model": "tiny", "prompt": "a", "n": 1000000000}',
    b'{"model": "tiny", "prompt": "a", "n": -1}',
]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_bad_bodies_get_a_clear_4xx_and_leave_nothing_behind(path: str):
    async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate:
        for body in BAD_BODIES:
            answer = await gate.post(path, body, {"content-type": "application/json"})
            if answer.status_code == 200:  # what another endpoint finds wrong may be fine here
                continue
            assert answer.status_code in {400, 404}, (body[:60], answer.text)
            assert answer.json()["error"]["message"]
        await gate.at_zero()
        assert not [seen for seen in up.scripted if seen.body in BAD_BODIES[:9]]


async def test_a_body_above_the_bound_is_413_declared_or_not():
    async def endless():
        for _ in range(60):
            yield b" " * 1000

    async with engine(respond(WHOLE)) as up, gateway([up.url], body_bytes_max=50_000) as gate:
        declared = await gate.post("/v1/completions", b" " * 60_000)
        assert (declared.status_code, declared.headers["x-kvgate-reason"]) == (413, "too_large")
        streamed = await gate.http.post("/v1/completions", content=endless())
        assert streamed.status_code == 413
        await gate.at_zero()
        assert not up.scripted


async def test_nothing_outside_the_table_reaches_a_backend():
    async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate:
        for path in ("/metrics", "/sleep", "/pause", "/v1/load_lora_adapter", "/health", "//v1/completions"):
            answer = await gate.post(path, {})
            assert answer.status_code == 404, path
        assert (await gate.http.get("/v1/completions")).status_code == 405
        assert not up.scripted
        models = (await gate.http.get("/v1/models")).json()
        assert [card["id"] for card in models["data"]] == ["tiny"]
        tokens = await gate.post("/tokenize", {"model": "tiny", "prompt": "a b c"})
        assert tokens.json()["count"] == 4
        assert gate.view.totals["arrivals"] == 0


class TestClientLeaves:
    async def test_while_queued(self):
        async with engine(hang(), face=EngineFace(num_gpu_blocks=5)) as up, gateway([up.url]) as gate:
            running = asyncio.create_task(gate.post("/v1/completions", completion()))
            await gate.until(lambda: len(up.scripted) == 1)
            waiting = asyncio.create_task(gate.post("/v1/completions", completion()))
            await gate.queued(1)
            waiting.cancel()
            await gate.queued(0)
            running.cancel()
            await gate.at_zero()
            assert len(up.scripted) == 1

    @pytest.mark.parametrize("stream", [True, False])
    async def test_before_the_first_byte(self, stream: bool):
        async with engine(hang()) as up, gateway([up.url]) as gate:
            running = asyncio.create_task(gate.post("/v1/completions", completion(stream=stream)))
            await gate.until(lambda: len(up.scripted) == 1)
            running.cancel()
            await asyncio.wait_for(up.scripted[0].closed.wait(), 10)
            await gate.at_zero()

    async def test_in_the_middle_of_a_stream(self):
        first, event, *_ = sse([piece("a")])
        async with engine((first, event, End.HANG)) as up, gateway([up.url]) as gate:
            async with gate.http.stream("POST", "/v1/completions", json=completion(stream=True)) as stream:
                async for _ in stream.aiter_raw():
                    break
            await asyncio.wait_for(up.scripted[0].closed.wait(), 10)
            await gate.at_zero()

    async def test_the_room_is_kept_until_the_engine_has_let_go(self):
        timeouts = Timeouts(draining_hold_s=0.5)
        async with engine(hang()) as up, gateway([up.url], timeouts=timeouts) as gate:
            running = asyncio.create_task(gate.post("/v1/completions", completion()))
            await gate.until(lambda: len(up.scripted) == 1)
            running.cancel()
            await asyncio.wait_for(up.scripted[0].closed.wait(), 10)
            assert gate.reserved_blocks == 4
            await gate.at_zero()


class TestBusy:
    @pytest.mark.parametrize("stream", [True, False])
    async def test_a_busy_engine_is_waited_for_not_shown(self, stream: bool):
        good = sse([piece("a", "length")]) if stream else respond(WHOLE)
        async with engine(respond(BUSY, 503), respond(BUSY, 503), good) as up:
            async with gateway([up.url], busy_hold_s=0.05) as gate:
                answer = await gate.post("/v1/completions", completion(stream=stream))
                assert answer.status_code == 200
                assert len(up.scripted) == 3
                await gate.at_zero()

    async def test_busy_inside_a_200_stream_too(self):
        async with engine(sse([BUSY]), sse([piece("a", "length")])) as up:
            async with gateway([up.url], busy_hold_s=0.05) as gate:
                answer = await gate.post("/v1/completions", completion(stream=True))
                assert (answer.status_code, b"busy" in answer.content) == (200, False)
                assert len(up.scripted) == 2
                await gate.at_zero()

    async def test_busy_to_the_end_of_the_wait_is_a_queue_timeout(self):
        tenant = TenantPolicy(queue_wait_s_max=0.4)
        async with engine(respond(BUSY, 503)) as up:
            async with gateway([up.url], busy_hold_s=0.05, tenant=tenant) as gate:
                answer = await gate.post("/v1/completions", completion())
                assert (answer.status_code, answer.headers["x-kvgate-reason"]) == (429, "queue_timeout")
                assert len(up.scripted) > 1
                await gate.at_zero()

    async def test_arrivals_wait_while_the_only_engine_is_busy(self):
        async with engine(respond(BUSY, 503), respond(WHOLE)) as up:
            async with gateway([up.url], busy_hold_s=0.3) as gate:
                first = asyncio.create_task(gate.post("/v1/completions", completion()))
                await gate.until(lambda: len(up.scripted) == 1)
                second = await gate.post("/v1/completions", completion())
                assert (second.status_code, (await first).status_code) == (200, 200)


class TestEngineTrouble:
    async def test_an_engine_that_refuses_is_left_for_another(self):
        async with engine(respond(WHOLE)) as one, engine(respond(WHOLE)) as two:
            async with gateway([one.url, two.url], probe_interval_s=30) as gate:
                await one.refuse()
                answers = [await gate.post("/v1/completions", completion()) for _ in range(6)]
                assert [answer.status_code for answer in answers] == [200] * 6
                assert len(two.scripted) == 6
                assert len(gate.app.pool.available()) == 1
                await gate.at_zero()

    async def test_the_only_engine_comes_back_within_the_wait(self):
        async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate:
            go = asyncio.Event()
            up.answers = [held_stream(go)]
            running = asyncio.create_task(gate.post("/v1/completions", completion(stream=True)))
            await gate.until(lambda: len(up.scripted) == 1)
            await up.refuse()
            await running
            await gate.until(lambda: not gate.app.pool.available())
            up.answers = [respond(WHOLE)]
            await up.listen()
            await gate.until(lambda: bool(gate.app.pool.available()))
            assert (await gate.post("/v1/completions", completion())).status_code == 200

    @pytest.mark.parametrize("stream", [True, False])
    async def test_a_reset_before_the_first_byte_is_sent_once_more(self, stream: bool):
        good = sse([piece("a", "length")]) if stream else respond(WHOLE)
        async with engine(reset(), good) as up, gateway([up.url]) as gate:
            answer = await gate.post("/v1/completions", completion(stream=stream))
            assert answer.status_code == 200
            assert len(up.scripted) == 2
            await gate.at_zero()

    @pytest.mark.parametrize("stream", [True, False])
    async def test_a_request_that_kills_engines_takes_two_of_four(self, stream: bool):
        async with engine(reset()) as a, engine(reset()) as b, engine(reset()) as c, engine(reset()) as d:
            async with gateway([a.url, b.url, c.url, d.url]) as gate:
                answer = await gate.post("/v1/completions", completion(stream=stream))
                assert (answer.status_code, answer.headers["x-kvgate-reason"]) == (502, "upstream_failed")
                assert "retry-after" not in answer.headers
                hit = [len(up.scripted) for up in (a, b, c, d)]
                assert sorted(hit) == [0, 0, 1, 1]
                await gate.at_zero()

    async def test_a_500_is_sent_once_more_then_passed_on_as_it_is(self):
        broken = {"error": {"message": "EngineCore encountered an issue.", "code": 500}}
        async with engine(respond(broken, 500)) as up, gateway([up.url]) as gate:
            answer = await gate.post("/v1/completions", completion())
            assert (answer.status_code, answer.json()) == (500, broken)
            assert len(up.scripted) == 2
            await gate.at_zero()

    async def test_a_400_of_the_engine_is_passed_on_and_is_no_failure_of_it(self):
        refusal = {"error": {"message": "n must be 1 when using greedy sampling, got 2.", "code": 400}}
        async with engine(respond(refusal, 400)) as up, gateway([up.url]) as gate:
            for _ in range(5):
                answer = await gate.post("/v1/completions", completion(n=2))
                assert (answer.status_code, answer.json()) == (400, refusal)
            assert len(gate.app.pool.available()) == 1

    @pytest.mark.parametrize("end", [End.RESET, End.CLOSE])
    async def test_a_break_in_the_middle_ends_with_one_error_event_and_no_done(self, end: End):
        whole = sse([piece("a"), piece("b"), piece("c", "length")])
        size = sum(len(step) for step in whole if isinstance(step, bytes))
        async with engine(cut(whole, size - 150, end)) as up, gateway([up.url]) as gate:
            answer = await gate.post("/v1/completions", completion(stream=True))
            assert answer.status_code == 200
            assert b"[DONE]" not in answer.content
            last = answer.content.rstrip(b"\n").split(b"\n\n")[-1]
            error = json.loads(last.removeprefix(b"data: "))["error"]
            assert error["code"] == "upstream_failed"
            assert answer.content.count(b'"upstream_failed"') == 1
            assert len(up.scripted) == 1
            await gate.at_zero()

    async def test_a_stream_without_its_end_is_no_success(self):
        async with engine(sse([piece("a")], done=False)) as up, gateway([up.url]) as gate:
            answer = await gate.post("/v1/completions", completion(stream=True))
            assert b"[DONE]" not in answer.content
            assert b"upstream_failed" in answer.content

    async def test_an_engines_own_error_in_the_stream_passes_as_it_is(self):
        error = {"error": {"message": "EngineCore encountered an issue.", "type": "x", "code": 500}}
        async with engine(sse([piece("a"), error])) as up, gateway([up.url]) as gate:
            answer = await gate.post("/v1/completions", completion(stream=True))
            assert answer.content.count(b'"error"') == 1
            assert answer.content.endswith(b"data: [DONE]\n\n")
            await gate.at_zero()

    @pytest.mark.parametrize("stream", [True, False])
    async def test_an_empty_200_goes_to_another_engine_once(self, stream: bool):
        empty_json = WHOLE | {
            "choices": [{"index": 0, "text": "", "finish_reason": "abort"}],
            "usage": USAGE | {"completion_tokens": 0},
        }
        empty = sse([]) if stream else respond(empty_json)
        good = sse([piece("a", "length")]) if stream else respond(WHOLE)
        async with engine(empty) as one, engine(empty) as two, gateway([one.url, two.url]) as gate:
            answer = await gate.post("/v1/completions", completion(stream=stream))
            assert (answer.status_code, answer.headers["x-kvgate-reason"]) == (502, "upstream_failed")
            assert [len(asked_by_clients(up)) for up in (one, two)] == [1, 1]
            one.answers = two.answers = [good]
            await gate.at_zero()

    async def test_silence_past_the_first_byte_bound_is_504(self):
        timeouts = Timeouts(first_byte_s=0.2, draining_hold_s=0.05)
        async with engine(hang()) as up, gateway([up.url], timeouts=timeouts) as gate:
            answer = await gate.post("/v1/completions", completion(stream=True))
            assert (answer.status_code, answer.headers["x-kvgate-reason"]) == (504, "upstream_timeout")
            assert len(up.scripted) == 1
            await gate.at_zero()

    async def test_silence_in_the_middle_ends_with_an_error_event(self):
        first, event, *_ = sse([piece("a")])
        timeouts = Timeouts(idle_s=0.2, draining_hold_s=0.05)
        async with engine((first, event, End.HANG)) as up, gateway([up.url], timeouts=timeouts) as gate:
            answer = await gate.post("/v1/completions", completion(stream=True))
            assert b"upstream_timeout" in answer.content
            assert b"[DONE]" not in answer.content
            await gate.at_zero()

    async def test_the_overall_bound_holds_across_queue_and_stream(self):
        timeouts = Timeouts(overall_s=0.2, draining_hold_s=0.05)
        tenant = TenantPolicy(queue_wait_s_max=0.2)
        steps: list[Any] = [
            head(200, [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")])
        ]
        steps += [part for _ in range(200) for part in (b"b\r\ndata: {}\n\n\r\n", Pause(0.05))]
        async with engine(tuple(steps)) as up, gateway([up.url], timeouts=timeouts, tenant=tenant) as gate:
            answer = await gate.post("/v1/completions", completion(stream=True))
            assert b"upstream_timeout" in answer.content
            await gate.at_zero()
            assert up.scripted[0].closed.is_set()


@pytest.mark.parametrize(
    ("path", "body", "marker"),
    [
        ("/v1/messages", {"model": "tiny", "max_tokens": 5, "messages": []}, b"event: error"),
        ("/v1/responses", {"model": "tiny", "input": "hello"}, b"event: response.failed"),
        ("/v1/chat/completions", chat(), b'data: {"error"'),
    ],
)
async def test_each_dialect_has_its_own_terminal_event(path: str, body: dict[str, Any], marker: bytes):
    first, event, *_ = sse([{"type": "message_start", "choices": [{"index": 0, "delta": {"content": "a"}}]}])
    if path == "/v1/responses":
        event = chunked(
            [b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta"}\n\n']
        )[1]
    if path == "/v1/messages":
        event = chunked([b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n'])[1]
    async with engine((first, event, Pause(0.05), End.RESET)) as up, gateway([up.url]) as gate:
        answer = await gate.post(path, body | {"stream": True})
        assert answer.content.count(marker) == 1, answer.content
        await gate.at_zero()


async def test_errors_on_messages_speak_anthropic():
    async with engine(respond(WHOLE)) as up, gateway([up.url]) as gate:
        answer = await gate.post("/v1/messages", b"{")
        assert answer.json()["type"] == "error"
        assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_a_prompt_that_was_counted_short_is_corrected_while_it_streams(monkeypatch: pytest.MonkeyPatch):
    go = asyncio.Event()
    usage = {"prompt_tokens": 900, "completion_tokens": 1, "total_tokens": 901}
    first, event, *rest = sse([piece("a") | {"usage": usage}, piece("b", "length")])
    face = EngineFace()
    async with engine((first, event, Pause(0.05), event, go, *rest), face=face) as up:
        async with gateway([up.url], prompt_tokens="backend") as gate:
            body = {"model": "tiny", "prompt": "a b c", "max_tokens": 21, "stream": True}
            running = asyncio.create_task(gate.post("/v1/completions", body))
            await gate.until(lambda: gate.reserved_blocks == 29, "900 + 20 slots are 29 blocks of 32")
            go.set()
            await running
            await gate.at_zero()


async def test_lifecycle_of_an_engine_added_drained_restarted(gate_of_two: tuple[Gate, Any, Any]):
    gate, one, two = gate_of_two
    await gate.app.pool.drain(one.url)
    for _ in range(4):
        assert (await gate.post("/v1/completions", completion())).status_code == 200
    assert (len(one.scripted), len(two.scripted)) == (0, 4)
    await gate.app.pool.undrain(one.url)
    for _ in range(4):
        await gate.post("/v1/completions", completion())
    assert len(one.scripted) > 0
    await gate.app.pool.remove(two.url)
    await gate.until(lambda: len(gate.view.engines) == 1)
    before = len(two.scripted)
    for _ in range(3):
        assert (await gate.post("/v1/completions", completion())).status_code == 200
    assert len(two.scripted) == before
    await gate.app.pool.add(two.url)
    await gate.until(lambda: len(gate.app.pool.available()) == 2)


@pytest.fixture
async def gate_of_two():
    async with engine(respond(WHOLE)) as one, engine(respond(WHOLE)) as two:
        async with gateway([one.url, two.url]) as gate:
            yield gate, one, two


async def test_the_engines_usage_teaches_the_counter():
    """With no /tokenize to ask, the estimate follows the usage of finished requests."""
    face = EngineFace()
    endpoints = engine_endpoints(face) | {"/tokenize": respond({"error": {"code": 404}}, 404)}
    prompt = "hello " * 400
    usage = WHOLE | {"usage": {"prompt_tokens": 500, "completion_tokens": 2, "total_tokens": 502}}
    async with ScriptedUpstream(respond(usage), endpoints=endpoints) as up, gateway([up.url]) as gate:
        counted: list[Any] = []
        gate.app.gateway._log = lambda record: counted.append(record.prompt_tokens_counted)
        for _ in range(30):
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 5}
            assert (await gate.post("/v1/completions", body)).status_code == 200
        assert counted[0] > 600, "careful at first"
        assert 500 <= counted[-1] <= 520
