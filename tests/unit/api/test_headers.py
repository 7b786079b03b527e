from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.api.headers import clean_request_id, request_headers, response_headers

CLIENTS = [
    (b"Host", b"gate.example"),
    (b"Connection", b"keep-alive, X-Mine , close"),
    (b"Keep-Alive", b"5"),
    (b"X-Mine", b"1"),
    (b"Transfer-Encoding", b"chunked"),
    (b"Content-Length", b"12"),
    (b"Content-Type", b"application/json"),
    (b"Accept-Encoding", b"gzip, br"),
    (b"Authorization", b"Bearer secret"),
    (b"X-Api-Key", b"secret"),
    (b"Cookie", b"a=b"),
    (b"X-Request-Id", b"evil"),
    (b"X-Kvgate-Tenant", b"admin"),
    (b"X-Data-Parallel-Rank", b"3"),
    (b"Traceparent", b"00-1-2-3"),
    (b"X-Forwarded-For", b"1.2.3.4"),
    (b"TE", b"trailers"),
    (b"Expect", b"100-continue"),
]


def test_to_the_engine_goes_what_is_not_of_this_hop_or_decided_here():
    assert request_headers(CLIENTS, "id-1", strip_credentials=True) == [
        (b"content-type", b"application/json"),
        (b"traceparent", b"00-1-2-3"),
        (b"x-forwarded-for", b"1.2.3.4"),
        (b"accept-encoding", b"identity"),
        (b"x-request-id", b"id-1"),
    ]


def test_credentials_pass_only_in_the_anonymous_mode_without_a_key():
    passed = dict(request_headers(CLIENTS, "id-1", strip_credentials=False))
    assert passed[b"authorization"] == b"Bearer secret"
    assert passed[b"x-api-key"] == b"secret"
    assert b"x-data-parallel-rank" not in passed


def test_the_header_that_tells_a_tenant_is_a_word_to_kvgate_alone():
    headers = [(b"X-Tenant", b"admin"), (b"x-tenant", b"other"), (b"x-b", b"2")]
    kept = request_headers(headers, "i", strip_credentials=True, identity_header="x-tenant")
    assert [name for name, _ in kept] == [b"x-b", b"accept-encoding", b"x-request-id"]
    assert (b"x-tenant", b"admin") in request_headers(headers, "i", strip_credentials=True)


def test_repeated_headers_keep_their_order():
    given_twice = [(b"x-a", b"1"), (b"x-b", b"2"), (b"x-a", b"3")]
    assert request_headers(given_twice, "i", strip_credentials=True)[:3] == given_twice


ENGINES = [
    (b"Content-Type", b"text/event-stream"),
    (b"Content-Length", b"7"),
    (b"Date", b"today"),
    (b"Server", b"uvicorn"),
    (b"Connection", b"close, x-hop"),
    (b"X-Hop", b"1"),
    (b"Transfer-Encoding", b"chunked"),
    (b"X-Request-Id", b"other"),
    (b"X-Kvgate-Reason", b"forged"),
    (b"Endpoint-Load-Metrics", b"JSON {}"),
]


def test_to_the_client_goes_what_the_engine_said_of_the_answer():
    assert response_headers(ENGINES) == [
        (b"content-type", b"text/event-stream"),
        (b"content-length", b"7"),
        (b"endpoint-load-metrics", b"JSON {}"),
    ]


def test_content_length_goes_with_the_bytes_it_counted():
    assert b"content-length" not in dict(response_headers(ENGINES, body_unchanged=False))


@pytest.mark.parametrize("good", ["abc-123", "A.b_c:d", "x" * 128, "0"])
def test_a_safe_request_id_is_kept(good: str):
    assert clean_request_id(good) == clean_request_id(good.encode()) == good


@given(
    st.none()
    | st.text()
    | st.binary()
    | st.just("x" * 129)
    | st.sampled_from(["", "a b", "a\n", "../x", "-a", "é"])
)
def test_any_request_id_comes_out_safe(value: str | bytes | None):
    clean = clean_request_id(value)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", clean)
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    assert clean == text or len(clean) == 32


def test_new_request_ids_differ():
    assert len({clean_request_id("") for _ in range(100)}) == 100
