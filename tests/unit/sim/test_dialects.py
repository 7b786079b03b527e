"""Frames and documents as vLLM 0.32 wrote them, texts and ids aside."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvgate.sim import output
from kvgate.sim.dialect_messages import Message
from kvgate.sim.dialect_openai import Chat, Completion, Embedding
from kvgate.sim.dialect_responses import Response
from kvgate.sim.errors import busy, engine_dead
from kvgate.sim.generation import Choice, Generation, Kind
from kvgate.sim.jobs import Progress

if TYPE_CHECKING:
    from kvgate.sim.dialect import Dialect

MARK = 7
WORDS = [output.words(MARK, k, k + 1) for k in range(4)]


def generation(kind: Kind, *, count: int = 1, **changes) -> Generation:
    fields = {
        "kind": kind,
        "model": "tiny",
        "choices": tuple(Choice((1, 97, 98), MARK, 5, None) for _ in range(count)),
        "prompt_tokens": 3,
        "n": count,
        "max_tokens": 5,
        "priority": 0,
        "stream": True,
        "include_usage": False,
        "continuous_usage": False,
    }
    return Generation(**{**fields, **changes})


def payloads(frames: str) -> list[Any]:
    """The data of each event, parsed."""
    events = [line.removeprefix("data: ") for line in frames.splitlines() if line.startswith("data: ")]
    return [data if data == "[DONE]" else json.loads(data) for data in events]


def test_a_completion_stream():
    dialect = Completion(generation(Kind.COMPLETION), "9fc8", 1796022916)
    frames = dialect.feed(Progress(0, 1)) + dialect.feed(Progress(0, 1, "length")) + dialect.closing()
    first = (
        'data: {"id":"cmpl-9fc8","object":"text_completion","created":1796022916,"model":"tiny",'
        '"choices":[{"index":0,'
        f'"text":"{WORDS[0]}","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,'
        '"token_ids":null}]}\n\n'
    )
    last = (
        'data: {"id":"cmpl-9fc8","object":"text_completion","created":1796022916,"model":"tiny",'
        '"choices":[{"index":0,'
        f'"text":"{WORDS[1]}","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_token_ids":null,'
        '"token_ids":null}],"system_fingerprint":"vllm-0.32.0-sim"}\n\n'
    )
    assert frames == first + last + "data: [DONE]\n\n"


def test_a_chat_stream_begins_with_the_role():
    dialect = Chat(generation(Kind.CHAT), "ae35", 1796022968)
    frames = dialect.feed(Progress(0, 1)) + dialect.feed(Progress(0, 1, "length")) + dialect.closing()
    head = (
        'data: {"id":"chatcmpl-ae35","object":"chat.completion.chunk","created":1796022968,'
        '"model":"tiny","choices":'
    )
    assert frames == (
        f'{head}[{{"index":0,"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}],'
        '"prompt_token_ids":null,"prompt_text":null}\n\n'
        f'{head}[{{"index":0,"delta":{{"content":"{WORDS[0]}"}},"logprobs":null,"finish_reason":null,'
        '"token_ids":null}]}\n\n'
        f'{head}[{{"index":0,"delta":{{"content":"{WORDS[1]}"}},"logprobs":null,"finish_reason":"length",'
        '"stop_reason":null,"token_ids":null}],"system_fingerprint":"vllm-0.32.0-sim"}\n\n'
        "data: [DONE]\n\n"
    )


@pytest.mark.parametrize("kind", [Kind.CHAT, Kind.COMPLETION])
def test_usage_comes_last_and_on_request_with_every_chunk(kind):
    dialect_type = {Kind.CHAT: Chat, Kind.COMPLETION: Completion}[kind]
    told = {}
    for continuous in (False, True):
        dialect = dialect_type(generation(kind, include_usage=True, continuous_usage=continuous), "x", 1)
        frames = dialect.feed(Progress(0, 2)) + dialect.feed(Progress(0, 1, "length")) + dialect.closing()
        told[continuous] = payloads(frames)
        *chunks, usage, done = told[continuous]
        assert done == "[DONE]"
        assert usage["choices"] == []
        assert usage["usage"] == {"prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3}
        assert "system_fingerprint" in usage
        assert all("system_fingerprint" not in chunk for chunk in chunks)
    counts = [chunk["usage"]["completion_tokens"] for chunk in told[True][:-2]]
    assert counts == ([0, 2, 3] if kind is Kind.CHAT else [2, 3])
    assert all("usage" not in chunk for chunk in told[False][:-2])


def test_every_choice_has_its_role_and_the_usage_is_their_sum():
    dialect = Chat(generation(Kind.CHAT, count=2, include_usage=True), "x", 1)
    frames = dialect.feed(Progress(0, 1)) + dialect.feed(Progress(1, 1, "length"))
    frames += dialect.feed(Progress(0, 1, "length")) + dialect.closing()
    chunks = payloads(frames)
    roles = [chunk["choices"][0]["index"] for chunk in chunks[:2]]
    assert roles == [0, 1]
    assert chunks[-2]["usage"]["completion_tokens"] == 3


def test_the_end_of_sequence_token_has_no_text():
    dialect = Completion(generation(Kind.COMPLETION), "x", 1)
    dialect.feed(Progress(0, 2))
    dialect.feed(Progress(0, 1, "stop"))
    (choice,) = dialect.document()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (WORDS[0] + WORDS[1], "stop")
    assert dialect.document()["usage"]["completion_tokens"] == 3


def test_echo_begins_with_the_prompt():
    choices = (Choice((1, 8 + 97, 8 + 98), MARK, 5, None),)
    dialect = Completion(generation(Kind.COMPLETION, echo=True, choices=choices), "x", 1)
    dialect.feed(Progress(0, 1, "length"))
    assert dialect.document()["choices"][0]["text"] == "ab" + WORDS[0]


def test_echo_alone_says_nothing_new():
    choices = (Choice((1, 8 + 97, 8 + 98), MARK, 1, None),)
    dialect = Completion(generation(Kind.COMPLETION, echo=True, max_tokens=0, choices=choices), "x", 1)
    dialect.feed(Progress(0, 1, "length"))
    document = dialect.document()
    assert document["choices"][0]["text"] == "ab"
    assert document["usage"]["completion_tokens"] == 1


def test_documents_have_the_fields_of_vllm():
    chat = Chat(generation(Kind.CHAT), "88df", 1796022916)
    completion = Completion(generation(Kind.COMPLETION), "88df", 1796022916)
    for dialect in (chat, completion):
        dialect.feed(Progress(0, 2, "length"))
    common = ["id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage"]
    tail = ["kv_transfer_params", "ec_transfer_params", "metrics"]
    assert list(completion.document()) == [*common, *tail]
    assert list(chat.document()) == [*common, "prompt_logprobs", "prompt_token_ids", "prompt_text", *tail]
    assert chat.document()["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 5,
        "completion_tokens": 2,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
    message = chat.document()["choices"][0]["message"]
    assert (message["role"], message["content"]) == ("assistant", WORDS[0] + WORDS[1])


def test_a_stream_without_a_token_is_only_done():
    for dialect in (
        Completion(generation(Kind.COMPLETION, include_usage=True), "x", 1),
        Chat(generation(Kind.CHAT, include_usage=True), "x", 1),
    ):
        assert dialect.abort() + dialect.closing() == "data: [DONE]\n\n"
        assert dialect.document()["choices"][0]["finish_reason"] == "abort"
        assert dialect.document()["usage"]["completion_tokens"] == 0


def test_an_abort_ends_every_choice_that_had_not_ended():
    dialect = Completion(generation(Kind.COMPLETION, count=2), "x", 1)
    dialect.feed(Progress(0, 1, "length"))
    (chunk,) = payloads(dialect.abort())
    assert (chunk["choices"][0]["index"], chunk["choices"][0]["finish_reason"]) == (1, "abort")
    assert dialect.finish == ["length", "abort"]
    assert not dialect.unfinished


def test_an_error_in_a_stream():
    dialect = Completion(generation(Kind.COMPLETION), "x", 1)
    assert dialect.error_frames(busy()) == (
        'data: {"error": {"message": "The engine is currently busy and cannot accept new requests. '
        'Please try again later or on a different instance.", "type": "Service Unavailable", "param": null, '
        '"code": 503}}\n\n'
        "data: [DONE]\n\n"
    )


def events(frames: str) -> list[str]:
    return [line.removeprefix("event: ") for line in frames.splitlines() if line.startswith("event: ")]


def stream_of(dialect: Dialect) -> str:
    frames = dialect.preamble() + dialect.feed(Progress(0, 1))
    return frames + dialect.feed(Progress(0, 1, "length")) + dialect.closing()


def test_a_response_stream():
    frames = stream_of(Response(generation(Kind.RESPONSE), "a1a1", 1796023020))
    names = events(frames)
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    told = payloads(frames)
    assert [event["sequence_number"] for event in told] == list(range(10))
    assert [event["type"] for event in told] == names
    final = told[-1]["response"]
    assert (final["status"], final["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert final["output"][0]["content"][0]["text"] == WORDS[0] + WORDS[1]
    assert (final["usage"]["input_tokens"], final["usage"]["output_tokens"]) == (3, 2)
    assert told[0]["response"]["usage"] is None
    assert "[DONE]" not in frames


@pytest.mark.parametrize(("finish", "status"), [("stop", "completed"), ("length", "incomplete")])
def test_the_status_of_a_response(finish, status):
    dialect = Response(generation(Kind.RESPONSE), "x", 1)
    dialect.feed(Progress(0, 2, finish))
    assert dialect.document()["status"] == status


def test_a_message_stream():
    frames = stream_of(Message(generation(Kind.MESSAGE), "a269", 1))
    assert events(frames) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    told = payloads(frames)
    assert told[0]["message"]["usage"] == {"input_tokens": 3, "output_tokens": 0}
    assert told[-2] == {
        "type": "message_delta",
        "delta": {"stop_reason": "max_tokens", "stop_sequence": None},
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }
    assert "[DONE]" not in frames


def test_a_message():
    dialect = Message(generation(Kind.MESSAGE), "b804", 1)
    dialect.feed(Progress(0, 3, "stop"))
    assert dialect.document() == {
        "id": "chatcmpl-b804",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": WORDS[0] + WORDS[1]}],
        "model": "tiny",
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 3},
    }


def test_errors_in_named_event_streams():
    assert events(Message(generation(Kind.MESSAGE), "x", 1).error_frames(engine_dead())) == ["error"]
    assert events(Response(generation(Kind.RESPONSE), "x", 1).error_frames(engine_dead())) == ["error"]


def test_embeddings_are_vectors_that_follow_from_the_prompt():
    one, other = (
        Embedding(generation(Kind.EMBEDDING, choices=(Choice((1,), mark, 1, None),)), "x", 1).document()
        for mark in (123456789, 987654321)
    )
    vector = one["data"][0]["embedding"]
    assert len(vector) == 8
    assert all(-1 <= number < 1 for number in vector)
    assert vector != other["data"][0]["embedding"]
    assert one["usage"]["completion_tokens"] == 0
