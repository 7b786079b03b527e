"""What a span tells of a request. Pure: from its record to attributes.

Names are those of OpenTelemetry's semantic conventions where these have one (`gen_ai.*`, `http.*`, `server.*`,
`error.type`; https://opentelemetry.io/docs/specs/semconv/gen-ai/), and `kvgate.*` for what only kvgate knows. Never
text of a prompt or an answer, a key, or a path or query as the client wrote it: a record has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kvgate.telemetry.record import NAME_CHARS_MAX
from kvgate_policies.types import Endpoint, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvgate.telemetry.record import RequestRecord

Attributes = dict[str, str | int | float | bool]

PROVIDER = "vllm"
"""`gen_ai.provider.name`: who makes the answer."""
KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
"""Of RFC 9110 and RFC 5789; any other is `_OTHER`, for whoever counts spans by method."""
OTHER_METHOD = "_OTHER"

OPERATIONS: Mapping[Endpoint, str] = {
    Endpoint.CHAT: "chat",
    Endpoint.CHAT_BATCH: "chat",
    Endpoint.MESSAGES: "chat",
    Endpoint.RESPONSES: "chat",
    Endpoint.COMPLETIONS: "text_completion",
    Endpoint.GENERATE: "text_completion",
    Endpoint.POOLING: "embeddings",
    Endpoint.AUDIO: "transcription",
}
"""`gen_ai.operation.name`. The conventions have no word for audio, and let systems use their own."""

GOOD_ENDS = frozenset({Outcome.SERVED, Outcome.CLIENT_GONE})
"""Not errors: that a client leaves is its own decision."""


def name(method: str, route: str | None) -> str:
    """Of the span of a request: of few different values, whatever clients send."""
    known = method if method in KNOWN_METHODS else "HTTP"
    return known if route is None else f"{known} {route}"


def error_of(record: RequestRecord) -> str | None:
    """Why it was no success, in the words of the metrics; None if it was one, or its client left."""
    outcome = record.outcome
    return None if outcome is None or outcome in GOOD_ENDS else record.reason or outcome.value


def of_request(method: str, route: str | None, record: RequestRecord) -> Attributes:
    """Of the span of the whole request, at its end."""
    return _known(
        ("http.request.method", method if method in KNOWN_METHODS else OTHER_METHOD),
        ("http.route", route),
        ("http.response.status_code", record.status),
        ("error.type", error_of(record)),
        *_generation(record),
        ("gen_ai.usage.input_tokens", record.prompt_tokens_real),
        ("gen_ai.usage.output_tokens", record.completion_tokens),
        ("gen_ai.response.time_to_first_chunk", record.ttft_s),
        ("kvgate.request_id", record.request_id),
        ("kvgate.tenant", record.tenant),
        ("kvgate.class", record.priority),
        ("kvgate.pool", record.pool),
        ("kvgate.engine", record.engine_id),
        ("kvgate.outcome", record.outcome and record.outcome.value),
        ("kvgate.reason", record.reason),
        ("kvgate.queue.wait_s", record.queue_s),
        ("kvgate.reserved.blocks", record.blocks_reserved),
        ("kvgate.reserved.tokens", record.tokens_reserved),
        ("kvgate.requeues", record.requeues or None),
        ("kvgate.would", record.would),
    )


def of_reserve(record: RequestRecord) -> Attributes:
    """Of the price: how it was counted, and what was asked for."""
    return _known(
        ("kvgate.prompt_tokens.counted", record.prompt_tokens_counted),
        ("kvgate.prompt_tokens.exact", record.prompt_tokens_exact or None),
        ("kvgate.max_tokens.charged", record.max_tokens_charged),
        ("kvgate.max_tokens.rewritten", record.max_tokens_rewritten or None),
    )


def of_queue(record: RequestRecord) -> Attributes:
    return _known(("kvgate.tenant", record.tenant), ("kvgate.class", record.priority))


def of_relay(base_url: str, record: RequestRecord, *, last: bool) -> Attributes:
    """Of one attempt at an engine; the last one's status is the engine's, unless kvgate itself had to answer."""
    parts = urlsplit(base_url)
    return _known(
        ("http.response.status_code", record.status if last and record.reason is None else None),
        *_generation(record),
        ("server.address", parts.hostname),
        ("server.port", parts.port or (443 if parts.scheme == "https" else 80)),
        ("kvgate.engine", record.engine_id),
        ("kvgate.reserved.blocks", record.blocks_reserved),
    )


def of_end(record: RequestRecord) -> Attributes:
    """Of the phase in which the request ended, whichever that was."""
    return _known(("kvgate.outcome", record.outcome and record.outcome.value))


def _generation(record: RequestRecord) -> Iterable[tuple[str, str | float | None]]:
    """What every span about a generation has. A request that costs nothing is none."""
    if record.endpoint is None:
        return ()
    limit = record.max_tokens_charged if record.max_tokens_rewritten else record.max_tokens_asked
    return (
        ("gen_ai.operation.name", OPERATIONS[record.endpoint]),
        ("gen_ai.provider.name", PROVIDER),
        ("gen_ai.request.model", record.model),
        ("gen_ai.request.max_tokens", limit),
        ("gen_ai.request.choice.count", record.n if record.n and record.n > 1 else None),
        ("gen_ai.request.stream", record.stream or None),
    )


def _known(*pairs: tuple[str, str | float | None]) -> Attributes:
    return {name: _bounded(value) for name, value in pairs if value is not None}


def _bounded(value: str | float) -> str | int | float | bool:
    """Names that clients choose are cut, and lose what no UTF-8 has."""
    if not isinstance(value, str):
        return value
    return value[:NAME_CHARS_MAX].encode(errors="replace").decode()
