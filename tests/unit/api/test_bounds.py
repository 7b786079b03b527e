"""What one body may cost the event loop: bounds on its values, and each part of it measured once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvgate.api import sizes
from kvgate.api.body import NoBody, read_body
from kvgate.api.fields import CONTAINERS_MAX, QUOTES_MAX, WORDS_MAX, decode
from kvgate.api.multipart import CONTENT_TYPE_CHARS_MAX, form_fields
from kvgate.api.parse import BadRequest, parse
from kvgate.api.rewrite import MEMBERS_MAX, with_max_tokens
from kvgate.api.sizes import LONG, SCALAR_BYTES, Scale
from kvgate_policies.types import Endpoint, InferenceRequest


def listed(value: bytes, times: int) -> bytes:
    return b'{"input":[' + b",".join([value] * times) + b"]}"


class TestValuesOfABody:
    @pytest.mark.parametrize(
        "body",
        [
            listed(b"[]", CONTAINERS_MAX),
            listed(b"{}", CONTAINERS_MAX),
            listed(b'{"a":[1]}', CONTAINERS_MAX // 2),
            b'{"unread":[' + b"[]," * CONTAINERS_MAX + b"1]}",
            listed(b'"x"', QUOTES_MAX // 2 + 2),
            listed(b"null", WORDS_MAX + 2),
            listed(b"false", WORDS_MAX + 2),
            b"[" * (CONTAINERS_MAX + 1) + b'"never closed \\',
        ],
    )
    def test_too_many_are_refused_before_they_are_read(self, body: bytes):
        refused = decode(body)
        assert isinstance(refused, BadRequest)
        assert "too many values" in refused.message

    @pytest.mark.parametrize(
        "body",
        [
            listed(b"7", 2 * WORDS_MAX),
            listed(b"[]", CONTAINERS_MAX - 10),
            listed(b'"if (a[0]) { b[1] = [{}, {}, {}, {}, {}, {}]; }"', CONTAINERS_MAX // 8),
            listed(rb'"a \" [ { , \\"', CONTAINERS_MAX),
            listed(b'", , , , , , , , , , , , , , null true false"', WORDS_MAX // 10),
        ],
        ids=["token ids", "just enough", "code in texts", "escapes", "commas in texts"],
    )
    def test_numbers_and_what_stands_in_texts_are_free(self, body: bytes):
        assert not isinstance(decode(body), BadRequest)


class TestMeasuredOnce:
    """A query stands in every pair and tools in every conversation; measuring them each time took minutes."""

    @pytest.fixture
    def measured(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        lengths: list[int] = []
        real = sizes.dense_bytes

        def counting(utf8: bytes) -> int:
            lengths.append(len(utf8))
            return real(utf8)

        monkeypatch.setattr(sizes, "dense_bytes", counting)
        return lengths

    @pytest.mark.parametrize(
        ("endpoint", "body"),
        [
            (Endpoint.POOLING, {"query": "\u4e2d" * 50, "documents": ["é"] * 40}),
            (Endpoint.POOLING, {"text_1": "\u4e2d" * 50, "text_2": ["é"] * 40}),
            (Endpoint.POOLING, {"query": "é", "documents": ["é"] * 40, "instruction": "\u4e2d" * 50}),
            (Endpoint.POOLING, {"messages": [["é"]] * 40, "chat_template": "\u4e2d" * 50}),
            (Endpoint.CHAT_BATCH, {"messages": [["é"]] * 40, "tools": ["\u4e2d" * 50]}),
        ],
    )
    def test_each_text_of_a_body_is_measured_once(
        self, endpoint: Endpoint, body: dict[str, Any], measured: list[int]
    ):
        request = parse(endpoint, json.dumps(body).encode())
        assert isinstance(request, InferenceRequest)
        assert len(request.prompts) == 40
        assert len(set(request.prompts)) == 1
        assert request.prompts[0].utf8_bytes >= 150 + 2
        assert measured.count(150) == 1
        assert len(measured) <= 42

    @pytest.mark.parametrize("items", [[1], [1, 2.5], [1, "a", None, True], [{"a": 1}, 7], [[1], "b", 3]])
    def test_a_long_list_is_as_large_as_its_short_ones(self, items: list[Any]):
        times = LONG

        def size(value: list[Any]) -> int:
            scale = Scale(0)
            scale.value(value)
            return scale.size().utf8_bytes - sizes.KEY_BYTES

        assert size(items * times) == times * size(items)

    def test_numbers_in_a_content_count(self):
        scale = Scale(0)
        scale.content([1] * LONG)
        assert scale.size().utf8_bytes == SCALAR_BYTES * LONG


def test_a_limit_is_not_written_among_thousands_of_members():
    body = json.dumps({f"m{number}": 1 for number in range(MEMBERS_MAX + 1)}).encode()
    with pytest.raises(ValueError, match="too many"):
        with_max_tokens(body, "max_tokens", 7)


def test_a_content_type_longer_than_any_boundary_is_no_form():
    body = b"--x\r\ncontent-disposition: form-data; name=n\r\n\r\n1\r\n--x--\r\n"
    assert form_fields(body, "multipart/form-data; boundary=x") is not None
    assert form_fields(body, "multipart/form-data;" + ";" * CONTENT_TYPE_CHARS_MAX + "boundary=x") is None


async def test_a_client_that_asks_first_is_not_told_to_send_too_large_a_body():
    asked = 0

    async def receive() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        return {"type": "http.request", "body": b"x" * 11, "more_body": False}

    headers = [(b"content-length", b"11")]
    assert await read_body(receive, [*headers, (b"expect", b"100-continue")], 10, 5.0) is NoBody.TOO_LARGE
    assert asked == 0
    assert await read_body(receive, headers, 10, 5.0) is NoBody.TOO_LARGE
    assert asked == 1
