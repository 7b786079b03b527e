"""Reason to answer: one table for status, error type and code, and the two shapes of an error body.

The types are those of the API whose SDK reads them. OpenAI's SDKs go by the status and show `type` and
`code`. OpenAI itself has `invalid_request_error`, `authentication_error`, `rate_limit_error`, `server_error`;
vLLM names the exception (`NotFoundError`). kvgate takes OpenAI's words, except for an unknown model: there it
says what vLLM says, because tools compare that text. Anthropic documents one type for each status.

SDKs retry 408, 409, 429 and every 5xx, whatever the body; `x-should-retry` overrules that. They honour a
`Retry-After` up to 60 s (all generations of them) and take `retry-after-ms` first.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from kvgate.admission import Reason
from kvgate.api.routes import Dialect

if TYPE_CHECKING:
    from kvgate.admission import Answer, Header

RETRY_AFTER_S_MAX = 60.0
"""Older SDKs take a larger one for a refusal to be asked again."""
JITTER = 0.25
"""Share of the delay that is added at random, lest all who were refused at once come back at once."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What follows from a reason."""

    status: int
    code: str | int
    should_retry: bool | None = None
    """Sent as `x-should-retry` if set."""


RULES: dict[Reason, Rule] = {
    Reason.QUEUE_FULL: Rule(429, "queue_full"),
    Reason.QUEUE_TIMEOUT: Rule(429, "queue_timeout"),
    Reason.TENANT_RATE: Rule(429, "tenant_rate"),
    Reason.NEVER_FITS: Rule(400, "context_length_exceeded", should_retry=False),
    Reason.NO_BACKEND: Rule(503, "no_backend"),
    Reason.LEDGER_UNAVAILABLE: Rule(503, "ledger_unavailable"),
    Reason.DRAINING: Rule(503, "draining"),
    Reason.UPSTREAM_FAILED: Rule(502, "upstream_failed"),
    Reason.UPSTREAM_TIMEOUT: Rule(504, "upstream_timeout"),
    Reason.DEADLINE: Rule(504, "deadline"),
    Reason.UNAUTHORIZED: Rule(401, "invalid_api_key"),
    Reason.UNKNOWN_MODEL: Rule(404, 404),
    Reason.BAD_REQUEST: Rule(400, "bad_request"),
    Reason.TOO_LARGE: Rule(413, "request_too_large"),
    Reason.NOT_FOUND: Rule(404, "not_found"),
    Reason.METHOD_NOT_ALLOWED: Rule(405, "method_not_allowed"),
    Reason.INTERNAL_ERROR: Rule(500, "internal_error", should_retry=False),
}

OPENAI_TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
    502: "server_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""By status; every other one is an `invalid_request_error`."""

ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""By status; every other one is an `invalid_request_error`."""


class Rendered(NamedTuple):
    """An answer, ready to be sent; `content-length` is the sender's to add."""

    status: int
    headers: list[Header]
    body: bytes


def render(answer: Answer, dialect: Dialect, request_id: str, *, jitter: float | None = None) -> Rendered:
    """The whole HTTP answer. `jitter` is a number from 0 to 1, drawn at random when not given."""
    share = random.random() if jitter is None else jitter  # noqa: S311  (spreads load, guards nothing)
    body = msgspec.json.encode(error_body(answer, dialect, request_id))
    headers: list[Header] = [
        (b"content-type", b"application/json"),
        (b"x-request-id", request_id.encode()),
        (b"x-kvgate-reason", answer.reason.value.encode()),
        *_retry_headers(answer, share),
    ]
    if answer.reason is Reason.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    return Rendered(status_of(answer), headers, body)


def status_of(answer: Answer) -> int:
    return answer.status if answer.status is not None else RULES[answer.reason].status


def code_of(answer: Answer) -> str | int:
    """An unknown model has vLLM's code, a number, whatever else was said."""
    if answer.reason is Reason.UNKNOWN_MODEL:
        return RULES[answer.reason].code
    return answer.code if answer.code is not None else RULES[answer.reason].code


def error_body(answer: Answer, dialect: Dialect, request_id: str) -> dict[str, Any]:
    """The JSON of the answer in the client's dialect."""
    if dialect is Dialect.ANTHROPIC:
        return {
            "type": "error",
            "error": {"type": _anthropic_type(answer), "message": answer.message},
            "request_id": request_id,
        }
    return {"error": openai_error(answer)}


def openai_error(answer: Answer) -> dict[str, Any]:
    return {
        "message": answer.message,
        "type": _openai_type(answer),
        "param": answer.param,
        "code": code_of(answer),
    }


def _openai_type(answer: Answer) -> str:
    if answer.reason is Reason.UNKNOWN_MODEL:
        return "NotFoundError"
    return OPENAI_TYPES.get(status_of(answer), "invalid_request_error")


def _anthropic_type(answer: Answer) -> str:
    return ANTHROPIC_TYPES.get(status_of(answer), "invalid_request_error")


def _retry_headers(answer: Answer, jitter: float) -> list[Header]:
    should_retry = RULES[answer.reason].should_retry
    headers: list[Header] = []
    if should_retry is not None:
        headers.append((b"x-should-retry", b"true" if should_retry else b"false"))
    if answer.retry_after_s is not None:
        delay_s = _delay_s(answer.retry_after_s, jitter, exact=answer.exact)
        headers.append((b"retry-after", str(max(1, math.ceil(delay_s))).encode()))
        headers.append((b"retry-after-ms", str(max(1, math.ceil(round(delay_s * 1000, 3)))).encode()))
    return headers


def _delay_s(retry_after_s: float, jitter: float, *, exact: bool) -> float:
    """An exact time needs no spreading: each of those refused has its own."""
    return min(retry_after_s, RETRY_AFTER_S_MAX) if exact else jittered_s(retry_after_s, jitter)


def jittered_s(delay_s: float, jitter: float) -> float:
    """The delay with its random share, never above `RETRY_AFTER_S_MAX`: the longest delays are spread too."""
    base_s = min(max(delay_s, 0.0), RETRY_AFTER_S_MAX / (1 + JITTER))
    return base_s * (1 + JITTER * jitter)
