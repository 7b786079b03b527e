"""The one table of paths that tenants can reach, and what becomes of each.

Promises: a path reaches a backend only if its raw bytes are in the table. Nothing is decoded, collapsed or
lower-cased on the way, so `//`, `%2e`, `..`, a trailing slash or other letters make another path, which is
404. vLLM's own administration (`/sleep`, `/pause`, `/metrics` …) is not in the table, hence out of reach.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from kvgate_policies.types import Endpoint


class Treatment(StrEnum):
    ADMITTED = "admitted"
    """Priced, reserved in the ledger, relayed."""
    RELAYED = "relayed"
    """Authenticated and passed on to a backend: occupies no KV cache."""
    MODELS = "models"
    """Answered by kvgate itself, merged over the pools."""


class Dialect(StrEnum):
    """Whose error bodies and stream events the client understands."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    RESPONSES = "responses"
    """OpenAI's error bodies, its own stream events."""


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    """As it stands in the table: `{id}` stands for a safe response id. Fit for a metric label."""
    treatment: Treatment
    endpoint: Endpoint | None = None
    dialect: Dialect = Dialect.OPENAI


@dataclass(frozen=True, slots=True)
class NotFound:
    """No such path here, whatever the method."""


@dataclass(frozen=True, slots=True)
class MethodNotAllowed:
    allow: tuple[str, ...]
    """The methods that are."""


def _admitted(path: str, endpoint: Endpoint, dialect: Dialect = Dialect.OPENAI) -> Route:
    return Route("POST", path, Treatment.ADMITTED, endpoint, dialect)


def _relayed(method: str, path: str, dialect: Dialect = Dialect.OPENAI) -> Route:
    return Route(method, path, Treatment.RELAYED, None, dialect)


TABLE: tuple[Route, ...] = (
    _admitted("/v1/chat/completions", Endpoint.CHAT),
    _admitted("/v1/chat/completions/batch", Endpoint.CHAT_BATCH),
    _admitted("/v1/completions", Endpoint.COMPLETIONS),
    _admitted("/v1/responses", Endpoint.RESPONSES, Dialect.RESPONSES),
    _admitted("/v1/messages", Endpoint.MESSAGES, Dialect.ANTHROPIC),
    _admitted("/inference/v1/generate", Endpoint.GENERATE),
    _admitted("/v1/embeddings", Endpoint.POOLING),
    _admitted("/pooling", Endpoint.POOLING),
    _admitted("/classify", Endpoint.POOLING),
    _admitted("/score", Endpoint.POOLING),
    _admitted("/v1/score", Endpoint.POOLING),
    _admitted("/rerank", Endpoint.POOLING),
    _admitted("/v1/rerank", Endpoint.POOLING),
    _admitted("/v2/rerank", Endpoint.POOLING),
    _admitted("/v1/audio/transcriptions", Endpoint.AUDIO),
    _admitted("/v1/audio/translations", Endpoint.AUDIO),
    Route("GET", "/v1/models", Treatment.MODELS),
    _relayed("POST", "/tokenize"),
    _relayed("POST", "/detokenize"),
    _relayed("POST", "/v1/messages/count_tokens", Dialect.ANTHROPIC),
    _relayed("POST", "/v1/chat/completions/render"),
    _relayed("POST", "/v1/completions/render"),
    _relayed("POST", "/v1/messages/render", Dialect.ANTHROPIC),
    _relayed("POST", "/v1/responses/render"),
    _relayed("GET", "/v1/responses/{id}"),
    _relayed("POST", "/v1/responses/{id}/cancel"),
)

RESPONSE_ID = r"resp_[A-Za-z0-9][A-Za-z0-9._:-]{0,199}"
"""vLLM makes `resp_` and the request id, and knows no others; no slash, percent sign or leading dot."""


def _by_path(routes: tuple[Route, ...]) -> dict[str, dict[str, Route]]:
    table: dict[str, dict[str, Route]] = {}
    for route in routes:
        table.setdefault(route.path, {})[route.method] = route
    return table


_EXACT = _by_path(tuple(route for route in TABLE if "{id}" not in route.path))
_WITH_ID = tuple(
    (re.compile(re.escape(path).replace(r"\{id\}", RESPONSE_ID)), methods)
    for path, methods in _by_path(tuple(route for route in TABLE if "{id}" in route.path)).items()
)


def match(method: str, raw_path: str) -> Route | NotFound | MethodNotAllowed:
    """What is to become of a request.

    `raw_path` is the path as it came, percent signs and all, without the query string.
    """
    methods = _methods(raw_path)
    if methods is None:
        return NotFound()
    return methods.get(method) or MethodNotAllowed(tuple(sorted(methods)))


def _methods(raw_path: str) -> dict[str, Route] | None:
    exact = _EXACT.get(raw_path)
    if exact is not None:
        return exact
    return next((methods for pattern, methods in _WITH_ID if pattern.fullmatch(raw_path)), None)
