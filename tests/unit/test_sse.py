"""The meter on what vLLM 0.32 sends, cut into chunks in every way, and on what no engine should send."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.sse import (
    FirstEvent,
    JSONVerdict,
    SSEMeter,
    StreamError,
    inspect_json,
    is_busy,
    is_unknown_model,
)
from kvgate.sse.framing import EVENT_BYTES_MAX
from kvgate_policies.types import Endpoint

BUSY = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)


def data(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def named(name: str, value: dict[str, object]) -> bytes:
    return f"event: {name}\n".encode() + data({"type": name, **value})


def chat_chunk(delta: dict[str, object], finish: str | None = None, **rest: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return data({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice], **rest})


def text_chunk(text: str, finish: str | None = None, **rest: Any) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return data({"id": "cmpl-1", "object": "text_completion", "choices": [choice], **rest})


def usage(prompt: int, completion: int) -> dict[str, Any]:
    return {
        "usage": {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }
    }


DONE = b"data: [DONE]\n\n"
ROLE = chat_chunk({"role": "assistant", "content": ""})
CHAT = (
    ROLE
    + chat_chunk({"content": " a"})
    + chat_chunk({"content": " b"})
    + chat_chunk({"content": "c"}, "length")
)
CHAT_USAGE = CHAT + data({"choices": [], **usage(7, 3)}) + DONE
COMPLETION = text_chunk("") + text_chunk("�del") + text_chunk("it", "length") + DONE
BUSY_STREAM = (
    data({"error": {"message": BUSY, "type": "Service Unavailable", "param": None, "code": 503}}) + DONE
)
DEAD = {
    "message": "EngineCore encountered an issue.",
    "type": "InternalServerError",
    "param": None,
    "code": 500,
}
ANTHROPIC = (
    named("message_start", {"message": {"id": "x", "usage": {"input_tokens": 7, "output_tokens": 0}}})
    + named("content_block_start", {"content_block": {"type": "text", "text": ""}, "index": 0})
    + named("content_block_delta", {"delta": {"type": "text_delta", "text": "The"}, "index": 0})
    + named("content_block_delta", {"delta": {"type": "text_delta", "text": "messages"}, "index": 0})
    + named("content_block_delta", {"delta": {"type": "signature_delta", "signature": "x"}, "index": 0})
    + named("content_block_stop", {"index": 0})
    + named(
        "message_delta",
        {"delta": {"stop_reason": "max_tokens", "stop_sequence": None}, "usage": {"output_tokens": 2}},
    )
    + named("message_stop", {})
)
RESPONSE: dict[str, object] = {
    "id": "resp_1",
    "model": "tiny",
    "status": "in_progress",
    "output": [],
    "usage": None,
}


def responses_event(name: str, number: int, **rest: object) -> bytes:
    body = {**rest, "sequence_number": number, "type": name}
    return f"event: {name}\n".encode() + data(body)


RESPONSES_OPENING = responses_event("response.created", 0, response=RESPONSE) + responses_event(
    "response.in_progress", 1, response=RESPONSE
)


def responses_end(number: int, status: str, output_tokens: int) -> bytes:
    answer = {**RESPONSE, "status": status, "usage": {"input_tokens": 6, "output_tokens": output_tokens}}
    return responses_event("response.completed", number, response=answer)


RESPONSES = (
    RESPONSES_OPENING
    + responses_event("response.output_item.added", 2, item={"id": "msg", "content": []})
    + responses_event("response.output_text.delta", 3, delta="\t sent")
    + responses_event("response.output_text.done", 4, text="\t sent")
    + responses_end(5, "incomplete", 2)
)


@dataclass(frozen=True)
class Seen:
    events: int
    tokens_seen: int
    prompt_tokens: int | None
    completion_tokens: int | None
    done: bool
    aborted: bool
    error: StreamError | None
    at_boundary: bool


def seen(meter: SSEMeter) -> Seen:
    return Seen(
        meter.events,
        meter.tokens_seen,
        meter.prompt_tokens,
        meter.completion_tokens,
        meter.done,
        meter.aborted,
        meter.error,
        meter.at_boundary,
    )


def read(endpoint: Endpoint, *chunks: bytes) -> SSEMeter:
    meter = SSEMeter(endpoint)
    for chunk in chunks:
        meter.feed(chunk)
    return meter


STREAMS = [
    (Endpoint.CHAT, CHAT_USAGE),
    (Endpoint.COMPLETIONS, COMPLETION),
    (Endpoint.COMPLETIONS, BUSY_STREAM),
    (Endpoint.CHAT, ROLE + chat_chunk({"content": ""}, "abort") + DONE),
    (Endpoint.MESSAGES, ANTHROPIC),
    (Endpoint.RESPONSES, RESPONSES),
]


class TestFindings:
    def test_chat_with_usage(self):
        meter = read(Endpoint.CHAT, CHAT_USAGE)
        assert seen(meter) == Seen(6, 3, 7, 3, done=True, aborted=False, error=None, at_boundary=True)
        assert meter.first is FirstEvent.TOKEN

    def test_completions_count_a_chunk_of_half_a_character_as_a_token(self):
        meter = read(Endpoint.COMPLETIONS, COMPLETION)
        assert (meter.tokens_seen, meter.completion_tokens, meter.done) == (3, None, True)

    def test_continuous_usage_of_several_choices_never_falls(self):
        meter = read(
            Endpoint.COMPLETIONS,
            text_chunk("a", **usage(4, 1)),
            text_chunk("b", **usage(4, 2)),
            text_chunk("c", **usage(4, 1)),
        )
        assert (meter.prompt_tokens, meter.completion_tokens, meter.tokens_seen) == (4, 2, 3)

    def test_anthropic(self):
        meter = read(Endpoint.MESSAGES, ANTHROPIC)
        assert seen(meter) == Seen(8, 2, 7, 2, done=True, aborted=False, error=None, at_boundary=True)

    def test_responses(self):
        meter = read(Endpoint.RESPONSES, RESPONSES)
        assert seen(meter) == Seen(6, 1, 6, 2, done=True, aborted=False, error=None, at_boundary=True)
        assert (meter.response_id, meter.response_model, meter.sequence_number) == ("resp_1", "tiny", 5)

    def test_token_in_token_out_and_transcriptions_read_as_openai(self):
        ids = data({"choices": [{"index": 0, "finish_reason": None, "token_ids": [5]}]})
        assert read(Endpoint.GENERATE, ids, ids, DONE).tokens_seen == 2
        spoken = data({"object": "transcription.chunk", "choices": [{"delta": {"content": "hi"}}]})
        assert read(Endpoint.AUDIO, spoken, DONE).tokens_seen == 1

    def test_a_tool_call_is_output(self):
        meter = read(Endpoint.CHAT, chat_chunk({"role": "assistant", "tool_calls": [{"index": 0}]}))
        assert (meter.first, meter.tokens_seen) == (FirstEvent.TOKEN, 1)

    def test_generated_text_that_looks_like_the_protocol_is_only_text(self):
        tricky = '"finish_reason":"abort" data: [DONE]\n\ndata: {"error": {"code": 500}} "usage"'
        meter = read(Endpoint.CHAT, chat_chunk({"content": tricky}))
        assert seen(meter) == Seen(1, 1, None, None, done=False, aborted=False, error=None, at_boundary=True)


class TestFirstEvent:
    @pytest.mark.parametrize(
        ("endpoint", "chunk", "first"),
        [
            (Endpoint.CHAT, ROLE, FirstEvent.TOKEN),
            (Endpoint.COMPLETIONS, text_chunk(""), FirstEvent.TOKEN),
            (Endpoint.CHAT, DONE, FirstEvent.DONE_ONLY),
            (Endpoint.CHAT, ROLE + DONE, FirstEvent.DONE_ONLY),
            (Endpoint.CHAT, BUSY_STREAM, FirstEvent.ERROR),
            (Endpoint.COMPLETIONS, text_chunk("", "abort"), FirstEvent.ABORTED_EMPTY),
            (Endpoint.COMPLETIONS, text_chunk("so far", "abort"), FirstEvent.TOKEN),
            (Endpoint.CHAT, ROLE + chat_chunk({"content": ""}, "abort"), FirstEvent.ABORTED_EMPTY),
            (Endpoint.CHAT, b": keep-alive\n\n", None),
            (Endpoint.CHAT, b"data: ", None),
            (Endpoint.MESSAGES, ANTHROPIC[:400], FirstEvent.TOKEN),
            (Endpoint.MESSAGES, named("message_stop", {}), FirstEvent.DONE_ONLY),
            (Endpoint.MESSAGES, named("error", {"error": {"type": "internal_error"}}), FirstEvent.ERROR),
            (Endpoint.MESSAGES, named("ping", {}), None),
            (
                Endpoint.MESSAGES,
                named("message_delta", {"delta": {"stop_reason": None}, "usage": {"output_tokens": 0}}),
                FirstEvent.ABORTED_EMPTY,
            ),
            (Endpoint.RESPONSES, RESPONSES_OPENING, None),
            (Endpoint.RESPONSES, RESPONSES_OPENING + responses_end(2, "completed", 0), FirstEvent.DONE_ONLY),
            (Endpoint.RESPONSES, RESPONSES_OPENING + responses_end(2, "completed", 3), FirstEvent.TOKEN),
            (Endpoint.RESPONSES, RESPONSES, FirstEvent.TOKEN),
            (Endpoint.RESPONSES, responses_event("error", 0, message="no", code="x"), FirstEvent.ERROR),
        ],
    )
    def test_tells_an_engine_at_work_from_one_that_is_not(
        self, endpoint: Endpoint, chunk: bytes, first: FirstEvent | None
    ):
        assert read(endpoint, chunk).first is first

    def test_does_not_change_any_more(self):
        meter = read(Endpoint.CHAT, ROLE, data({"error": DEAD}), DONE)
        assert meter.first is FirstEvent.TOKEN
        assert meter.error == StreamError(500, "EngineCore encountered an issue.", busy=False)


class TestErrors:
    def test_busy_is_told_from_broken(self):
        busy, broken = (
            read(Endpoint.CHAT, BUSY_STREAM).error,
            read(Endpoint.CHAT, data({"error": DEAD})).error,
        )
        assert busy == StreamError(503, BUSY, busy=True)
        assert broken is not None
        assert not broken.busy

    def test_abort_is_not_done_well(self):
        meter = read(Endpoint.COMPLETIONS, text_chunk("a"), text_chunk("", "abort"), DONE)
        assert (meter.done, meter.aborted, meter.tokens_seen) == (True, True, 1)

    @pytest.mark.parametrize(("status", "aborted"), [("cancelled", True), ("completed", False)])
    def test_a_cancelled_response_is_aborted(self, status: str, aborted: bool):
        meter = read(Endpoint.RESPONSES, RESPONSES_OPENING, responses_end(2, status, 3))
        assert meter.aborted is aborted

    def test_a_failed_response_is_an_error(self):
        failed = {**RESPONSE, "status": "failed", "error": {"code": "server_error", "message": "broke"}}
        meter = read(Endpoint.RESPONSES, responses_event("response.failed", 3, response=failed))
        assert (meter.error, meter.done, meter.aborted) == (
            StreamError(None, "broke", busy=False),
            True,
            True,
        )

    @pytest.mark.parametrize("error", ["busy", 5, [], {"message": 3, "code": "x"}, {"code": -1}])
    def test_any_form_of_error_is_one(self, error: object):
        assert read(Endpoint.CHAT, data({"error": error})).error is not None


class TestFraming:
    @pytest.mark.parametrize(("endpoint", "stream"), STREAMS)
    def test_byte_by_byte(self, endpoint: Endpoint, stream: bytes):
        whole = read(endpoint, stream)
        bytewise = read(endpoint, *(bytes([byte]) for byte in stream))
        assert seen(bytewise) == seen(whole)

    @pytest.mark.parametrize("line_end", [b"\r\n", b"\r"])
    @pytest.mark.parametrize(("endpoint", "stream"), STREAMS)
    def test_other_line_ends(self, endpoint: Endpoint, stream: bytes, line_end: bytes):
        other = stream.replace(b"\n", line_end)
        whole = seen(read(endpoint, stream))
        assert seen(read(endpoint, other)) == whole
        assert seen(read(endpoint, *(bytes([byte]) for byte in other))) == whole

    @given(st.sampled_from(STREAMS), st.lists(st.integers(0, 3000), max_size=12), st.booleans())
    def test_any_cut(self, case: tuple[Endpoint, bytes], cuts: list[int], crlf: bool):
        endpoint, stream = case
        if crlf:
            stream = stream.replace(b"\n", b"\r\n")
        edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
        parts = [stream[a:b] for a, b in pairwise(edges)]
        assert seen(read(endpoint, *parts)) == seen(read(endpoint, stream))

    def test_comments_and_lines_of_data(self):
        event = b': hello\nid: 3\nretry: 5\ndata: {"choices":\ndata:[{"text": "x"}]}\n\n'
        meter = read(Endpoint.COMPLETIONS, b": only a comment\n\n", event)
        assert (meter.events, meter.tokens_seen) == (1, 1)

    def test_an_event_without_its_empty_line_counts_at_the_end(self):
        meter = read(Endpoint.CHAT, ROLE, b"data: [DONE]")
        assert (meter.done, meter.at_boundary) == (False, False)
        meter.end()
        assert (meter.done, meter.at_boundary) == (True, True)

    @pytest.mark.parametrize(
        ("tail", "at_boundary"),
        [(b"", True), (b"data: {", False), (b"data: {}\n", False), (b"data: {}\n\n", True), (b"\n", True)],
    )
    def test_boundary(self, tail: bytes, at_boundary: bool):
        assert read(Endpoint.CHAT, ROLE, tail).at_boundary is at_boundary

    def test_a_stream_without_events_is_not_kept(self):
        meter = SSEMeter(Endpoint.CHAT)
        for _ in range(40):
            meter.feed(b"x" * (EVENT_BYTES_MAX // 16))
        assert meter.blind
        boundaries: list[bool] = []
        for chunk in (b"data: {}", b"\n", b"\n"):
            meter.feed(chunk)
            boundaries.append(meter.at_boundary)
        assert boundaries == [False, False, True]
        assert meter.events == 0

    def test_an_event_of_the_largest_size_is_read_in_small_pieces(self):
        stream = chat_chunk({"content": "x" * (EVENT_BYTES_MAX - 1000)})
        meter = read(Endpoint.CHAT, *(stream[i : i + 4096] for i in range(0, len(stream), 4096)))
        assert (meter.tokens_seen, meter.blind) == (1, False)

    @given(st.sampled_from(Endpoint), st.lists(st.binary(max_size=60)))
    def test_never_raises_on_bytes(self, endpoint: Endpoint, chunks: list[bytes]):
        meter = read(endpoint, *(b"data: " + chunk + b"\n\n" for chunk in chunks))
        meter.end()
        assert meter.events <= sum(chunk.count(b"data") for chunk in chunks) + len(chunks)


KEYS = st.sampled_from(
    [
        "choices",
        "usage",
        "error",
        "message",
        "delta",
        "finish_reason",
        "text",
        "response",
        "type",
        "status",
        "code",
    ]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(
    st.sampled_from(Endpoint),
    st.dictionaries(KEYS, JSON, max_size=6),
    st.sampled_from(["", "error", "response.failed"]),
)
def test_never_raises_on_json(endpoint: Endpoint, value: dict[str, object], name: str):
    body = json.dumps(value).encode()
    prefix = f"event: {name}\n".encode() if name else b""
    meter = read(endpoint, prefix + b"data: " + body + b"\n\n")
    assert meter.events == 1
    verdict = inspect_json(endpoint, body)
    assert not (verdict.empty and (verdict.completion_tokens or 0) > 0)


class TestBody:
    def test_completion(self):
        choice = {"index": 0, "text": "x", "finish_reason": "length"}
        verdict = inspect_json(
            Endpoint.COMPLETIONS, json.dumps({"choices": [choice], **usage(4, 16)}).encode()
        )
        assert (verdict.prompt_tokens, verdict.completion_tokens) == (4, 16)
        assert (verdict.empty, verdict.aborted, verdict.error) == (False, False, None)

    def test_aborted_before_the_first_token(self):
        choice = {"index": 0, "text": "", "finish_reason": "abort"}
        verdict = inspect_json(
            Endpoint.COMPLETIONS, json.dumps({"choices": [choice], **usage(5, 0)}).encode()
        )
        assert (verdict.empty, verdict.aborted) == (True, True)

    def test_aborted_in_the_middle(self):
        choice = {"index": 0, "message": {"role": "assistant", "content": "so"}, "finish_reason": "abort"}
        verdict = inspect_json(Endpoint.CHAT, json.dumps({"choices": [choice], **usage(5, 9)}).encode())
        assert (verdict.empty, verdict.aborted) == (False, True)

    def test_anthropic(self):
        body: dict[str, object] = {
            "type": "message",
            "content": [],
            "stop_reason": None,
            "usage": {"input_tokens": 7, "output_tokens": 0},
        }
        verdict = inspect_json(Endpoint.MESSAGES, json.dumps(body).encode())
        assert (verdict.prompt_tokens, verdict.empty, verdict.aborted) == (7, True, True)

    def test_responses(self):
        body = {"object": "response", "status": "completed", "usage": {"input_tokens": 6, "output_tokens": 3}}
        verdict = inspect_json(Endpoint.RESPONSES, json.dumps(body).encode())
        assert (verdict.prompt_tokens, verdict.completion_tokens, verdict.empty) == (6, 3, False)

    def test_embeddings_have_no_output_and_are_not_empty(self):
        body = {"object": "list", "data": [{"embedding": [0.1]}], **usage(4, 0)}
        verdict = inspect_json(Endpoint.POOLING, json.dumps(body).encode())
        assert (verdict.prompt_tokens, verdict.empty) == (4, False)

    @pytest.mark.parametrize("body", [b"", b"[]", b"nonsense", b'{"choices": 3}', b"\xff", b"[" * 100_000])
    def test_of_what_it_cannot_read_it_says_nothing(self, body: bytes):
        verdict = inspect_json(Endpoint.CHAT, body)
        assert verdict == JSONVerdict(None, None, empty=False, aborted=False, error=None)


class TestBusy:
    @pytest.mark.parametrize(
        "message",
        [
            BUSY,
            "The engine has reached its prefill token backlog limit. Please try again later.",
            "The model is currently scaling. Please try again later.",
        ],
    )
    def test_vllm_without_room(self, message: str):
        assert is_busy(503, json.dumps({"error": {"message": message, "code": 503}}).encode())
        assert is_busy(503, json.dumps({"error": message}).encode())
        assert not is_busy(500, json.dumps({"error": message}).encode())

    def test_other_503s_are_failures(self):
        assert not is_busy(503, b'{"error":{"message":"EngineCore encountered an issue."}}')
        assert not is_busy(503, b"")


class TestUnknownModel:
    @pytest.mark.parametrize(
        ("body", "known"),
        [
            (
                b'{"error":{"message":"The model `other` does not exist.","type":"NotFoundError","code":404}}',
                False,
            ),
            (b'{"detail":"Not Found"}', True),
            (b'{"error":{"message":"Response with id \'resp_1\' not found.","code":404}}', True),
            (b"", True),
        ],
    )
    def test_by_the_words_of_vllm(self, body: bytes, known: bool):
        assert is_unknown_model(body) is not known


class TestCutOff:
    @pytest.mark.parametrize(
        ("endpoint", "stream", "cut_off"),
        [
            (Endpoint.CHAT, ROLE + chat_chunk({"content": "a"}) + chat_chunk({"content": ""}, "abort"), True),
            (Endpoint.CHAT, ROLE + chat_chunk({"content": "a"}, "length") + DONE, False),
            (Endpoint.RESPONSES, RESPONSES_OPENING + responses_end(2, "cancelled", 2), True),
            (Endpoint.RESPONSES, RESPONSES, False),
            (
                Endpoint.RESPONSES,
                RESPONSES_OPENING
                + responses_event("response.failed", 2, response=RESPONSE | {"error": {"code": 1}}),
                False,
            ),
        ],
    )
    def test_an_end_without_a_word_of_error(self, endpoint: Endpoint, stream: bytes, cut_off: bool):
        assert read(endpoint, stream).cut_off is cut_off

    def test_after_a_chunk_that_was_not_passed_on_no_boundary_is_known(self):
        meter = read(Endpoint.CHAT, ROLE)
        assert meter.at_boundary
        meter.withhold()
        assert not meter.at_boundary
