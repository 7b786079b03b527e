"""How an answer ended, by the word of each API: by itself, at its limit, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvgate.sse import Finish, SSEMeter, inspect_json
from kvgate_policies.types import Endpoint

STOP, LIMIT = Finish.STOP, Finish.LIMIT


def event(data: Any, name: str | None = None) -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(data).encode() + b"\n\n"


def choice(reason: str | None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": reason, **more}]}


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("stop", STOP), ("tool_calls", STOP), ("length", LIMIT), ("abort", None), ("error", None), (None, None)],
)
@pytest.mark.parametrize("cut", [1, 7, 10_000])
def test_chat(reason: str | None, finish: Finish | None, cut: int):
    meter = SSEMeter(Endpoint.CHAT)
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    stream = event(choice(None)) + event(choice(reason)) + event(usage) + b"data: [DONE]\n\n"
    for start in range(0, len(stream), cut):
        meter.feed(stream[start : start + cut])
    meter.end()
    assert meter.finish is finish
    body = {"choices": [{"message": {"content": "a"}, "finish_reason": reason}], **usage["usage"]}  # type: ignore[dict-item]
    assert inspect_json(Endpoint.CHAT, json.dumps(body).encode()).finish is finish


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("end_turn", STOP), ("tool_use", STOP), ("stop_sequence", STOP), ("max_tokens", LIMIT), (None, None)],
)
def test_messages(reason: str | None, finish: Finish | None):
    meter = SSEMeter(Endpoint.MESSAGES)
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 0}}}
    delta = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 2}}
    meter.feed(event(start, "message_start"))
    meter.feed(event({"type": "content_block_delta"}, "content_block_delta"))
    assert meter.finish is None
    meter.feed(event(delta, "message_delta") + event({"type": "message_stop"}, "message_stop"))
    assert meter.finish is finish
    body = {"type": "message", "stop_reason": reason, "usage": {"input_tokens": 3, "output_tokens": 2}}
    assert inspect_json(Endpoint.MESSAGES, json.dumps(body).encode()).finish is finish


@pytest.mark.parametrize(
    ("status", "finish"),
    [("completed", STOP), ("incomplete", LIMIT), ("failed", None), ("cancelled", None)],
)
def test_responses(status: str, finish: Finish | None):
    meter = SSEMeter(Endpoint.RESPONSES)
    response = {
        "id": "r",
        "object": "response",
        "status": status,
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }
    meter.feed(event({"type": "response.output_text.delta"}, "response.output_text.delta"))
    meter.feed(event({"type": f"response.{status}", "response": response}, f"response.{status}"))
    assert meter.finish is finish
    assert inspect_json(Endpoint.RESPONSES, json.dumps(response).encode()).finish is finish


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{"finish_reason": 3}]}']
)
def test_what_says_nothing_of_an_end(body: bytes):
    assert inspect_json(Endpoint.CHAT, body).finish is None
