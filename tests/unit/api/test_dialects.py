"""Terminal events, as a strict event-stream reader and OpenAI's own SDK see them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from kvgate.admission import Answer, Reason
from kvgate.api.dialects import Dialect, terminal_event
from kvgate.sse import SSEMeter
from kvgate_policies.types import Endpoint

BROKEN = Answer(Reason.UPSTREAM_FAILED, "The connection to the backend broke.")
ENDPOINTS = {
    Dialect.OPENAI: Endpoint.CHAT,
    Dialect.ANTHROPIC: Endpoint.MESSAGES,
    Dialect.RESPONSES: Endpoint.RESPONSES,
}
CHUNK = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
)


def data_of(event: bytes) -> dict[str, object]:
    line = next(line for line in event.splitlines() if line.startswith(b"data: "))
    value: dict[str, object] = json.loads(line[6:])
    return value


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize(
    "before", [b"", b": hi\n\n", b"data: {}\n\n", b'data: {"cho', b"data: {}\n", b"event: x\n", b"\n"]
)
def test_is_one_error_event_wherever_the_stream_broke(dialect: Dialect, before: bytes):
    meter = SSEMeter(ENDPOINTS[dialect])
    meter.feed(before)
    meter.feed(terminal_event(dialect, BROKEN, "id-1", at_boundary=meter.at_boundary))
    assert meter.error is not None
    assert meter.error.message == BROKEN.message
    assert meter.at_boundary


@pytest.mark.parametrize("dialect", Dialect)
def test_does_not_pretend_that_the_answer_is_whole(dialect: Dialect):
    event = terminal_event(dialect, BROKEN, "id-1")
    for end in (b"[DONE]", b"message_stop", b"response.completed"):
        assert end not in event


def test_openai_shape():
    error = {"message": BROKEN.message, "type": "server_error", "param": None, "code": "upstream_failed"}
    assert data_of(terminal_event(Dialect.OPENAI, BROKEN, "id-1")) == {"error": error}


def test_anthropic_shape():
    event = terminal_event(Dialect.ANTHROPIC, BROKEN, "id-1", at_boundary=True)
    assert event.startswith(b"event: error\ndata: ")
    assert data_of(event) == {
        "type": "error",
        "error": {"type": "api_error", "message": BROKEN.message},
        "request_id": "id-1",
    }


def test_openais_sdk_raises_the_error_of_a_chat_stream():
    event = terminal_event(Dialect.OPENAI, BROKEN, "id-1", at_boundary=True)
    client = sdk(CHUNK + event)
    stream = client.chat.completions.create(model="m", messages=[], stream=True)
    texts: list[str | None] = []
    with pytest.raises(openai.APIError, match="broke"):
        texts.extend(chunk.choices[0].delta.content for chunk in stream)
    assert texts == ["a"]


def test_openais_sdk_reads_a_failed_response():
    event = terminal_event(
        Dialect.RESPONSES,
        BROKEN,
        "id-1",
        response_id="resp_7",
        model="m",
        sequence_number=4,
        created_s=9,
    )
    (failed,) = sdk(event).responses.create(model="m", input="x", stream=True)
    assert failed.type == "response.failed"
    assert failed.sequence_number == 5
    response = failed.response
    assert (response.id, response.model, response.status, response.created_at) == ("resp_7", "m", "failed", 9)
    assert response.error is not None
    assert (response.error.code, response.error.message) == ("server_error", BROKEN.message)


def sdk(stream: bytes) -> openai.OpenAI:
    def answer(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=stream)

    client: Any = httpx.Client(transport=httpx.MockTransport(answer))
    return openai.OpenAI(api_key="k", base_url="http://x/v1", http_client=client)
