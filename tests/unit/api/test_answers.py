"""Status, headers and bodies of what kvgate says itself, as the SDKs read them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.admission import Answer, Reason
from kvgate.api.answers import RULES, jittered_s, render
from kvgate.api.routes import Dialect

EXPECTED = {
    Reason.QUEUE_FULL: (429, "rate_limit_error", "rate_limit_error"),
    Reason.QUEUE_TIMEOUT: (429, "rate_limit_error", "rate_limit_error"),
    Reason.TENANT_RATE: (429, "rate_limit_error", "rate_limit_error"),
    Reason.NEVER_FITS: (400, "invalid_request_error", "invalid_request_error"),
    Reason.NO_BACKEND: (503, "overloaded_error", "overloaded_error"),
    Reason.LEDGER_UNAVAILABLE: (503, "overloaded_error", "overloaded_error"),
    Reason.DRAINING: (503, "overloaded_error", "overloaded_error"),
    Reason.UPSTREAM_FAILED: (502, "server_error", "api_error"),
    Reason.UPSTREAM_TIMEOUT: (504, "timeout_error", "timeout_error"),
    Reason.DEADLINE: (504, "timeout_error", "timeout_error"),
    Reason.UNAUTHORIZED: (401, "authentication_error", "authentication_error"),
    Reason.UNKNOWN_MODEL: (404, "NotFoundError", "not_found_error"),
    Reason.BAD_REQUEST: (400, "invalid_request_error", "invalid_request_error"),
    Reason.TOO_LARGE: (413, "invalid_request_error", "request_too_large"),
    Reason.NOT_FOUND: (404, "invalid_request_error", "not_found_error"),
    Reason.METHOD_NOT_ALLOWED: (405, "invalid_request_error", "invalid_request_error"),
    Reason.INTERNAL_ERROR: (500, "server_error", "api_error"),
}


def headers_of(answer: Answer, jitter: float = 0.0) -> dict[str, str]:
    rendered = render(answer, Dialect.OPENAI, "id-1", jitter=jitter)
    return {name.decode(): value.decode() for name, value in rendered.headers}


@pytest.mark.parametrize(
    ("exact_s", "seconds", "milliseconds"), [(2.0, "2", "2000"), (0.0412, "1", "42"), (300.0, "60", "60000")]
)
@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
def test_an_exact_time_is_said_as_it_is_up_to_what_sdks_take(
    exact_s: float, seconds: str, milliseconds: str, jitter: float
):
    headers = headers_of(Answer(Reason.TENANT_RATE, "Spent.", retry_after_s=exact_s, exact=True), jitter)
    assert (headers["retry-after"], headers["retry-after-ms"]) == (seconds, milliseconds)


def test_every_reason_has_a_row():
    assert set(RULES) == set(Reason) == set(EXPECTED)


@pytest.mark.parametrize("reason", Reason)
def test_status_and_types(reason: Reason):
    answer = Answer(reason, "Because.", param="n")
    status, openai_type, anthropic_type = EXPECTED[reason]
    openai = render(answer, Dialect.OPENAI, "id-1", jitter=0.5)
    assert openai.status == status
    error = json.loads(openai.body)["error"]
    assert (error["message"], error["type"], error["param"]) == ("Because.", openai_type, "n")
    assert set(error) == {"message", "type", "param", "code"}
    anthropic = render(answer, Dialect.ANTHROPIC, "id-1", jitter=0.5)
    assert json.loads(anthropic.body) == {
        "type": "error",
        "error": {"type": anthropic_type, "message": "Because."},
        "request_id": "id-1",
    }
    assert render(answer, Dialect.RESPONSES, "id-1", jitter=0.5) == openai


@pytest.mark.parametrize("reason", Reason)
def test_headers_of_all(reason: Reason):
    headers = headers_of(Answer(reason, "Because."))
    assert headers["x-kvgate-reason"] == reason.value
    assert headers["x-request-id"] == "id-1"
    assert headers["content-type"] == "application/json"
    assert ("x-should-retry" in headers) is (reason in {Reason.NEVER_FITS, Reason.INTERNAL_ERROR})
    assert ("www-authenticate" in headers) is (reason is Reason.UNAUTHORIZED)
    assert "retry-after" not in headers


def test_never_fits_is_not_to_be_retried_and_has_openais_code():
    answer = Answer(Reason.NEVER_FITS, "Too long.")
    assert headers_of(answer)["x-should-retry"] == "false"
    assert json.loads(render(answer, Dialect.OPENAI, "i").body)["error"]["code"] == "context_length_exceeded"


def test_unknown_model_is_in_vllms_words():
    answer = Answer(Reason.UNKNOWN_MODEL, "The model `x` does not exist.", param="model", code="ignored")
    assert json.loads(render(answer, Dialect.OPENAI, "i").body) == {
        "error": {
            "message": "The model `x` does not exist.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        }
    }


@pytest.mark.parametrize(
    ("status", "openai_type", "anthropic_type"),
    [(503, "overloaded_error", "overloaded_error"), (529, "overloaded_error", "overloaded_error")],
)
def test_a_tenants_own_overload_status(status: int, openai_type: str, anthropic_type: str):
    answer = Answer(Reason.QUEUE_FULL, "Full.", retry_after_s=2, status=status)
    openai, anthropic = (render(answer, dialect, "i") for dialect in (Dialect.OPENAI, Dialect.ANTHROPIC))
    assert openai.status == anthropic.status == status
    assert json.loads(openai.body)["error"]["type"] == openai_type
    assert json.loads(anthropic.body)["error"]["type"] == anthropic_type


@given(st.floats(0, 1e9), st.floats(0, 1))
def test_retry_after_is_whole_between_1_and_60_and_agrees_with_its_milliseconds(
    delay_s: float, jitter: float
):
    headers = headers_of(Answer(Reason.QUEUE_FULL, "Full.", retry_after_s=delay_s), jitter)
    whole, milliseconds = int(headers["retry-after"]), int(headers["retry-after-ms"])
    assert 1 <= whole <= 60
    assert 1 <= milliseconds <= 60_000
    assert (whole - 1) * 1000 <= milliseconds + 1
    assert milliseconds <= whole * 1000


@pytest.mark.parametrize("delay_s", [0.2, 3.0, 48.0, 60.0, 1e9])
def test_any_delay_is_spread_over_a_quarter(delay_s: float):
    shortest, longest = jittered_s(delay_s, 0.0), jittered_s(delay_s, 1.0)
    assert longest == pytest.approx(1.25 * shortest)
    assert longest <= 60


def test_jitter_is_drawn_when_not_given():
    answer = Answer(Reason.QUEUE_FULL, "Full.", retry_after_s=30)
    drawn = {dict(render(answer, Dialect.OPENAI, "i").headers)[b"retry-after-ms"] for _ in range(20)}
    assert len(drawn) > 1
