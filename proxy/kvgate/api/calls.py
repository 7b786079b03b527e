"""From a request that was let in to what serves it: its pool, its policy there, and the call to be forwarded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvgate.admission import Answer, Call, Ended, Reason, said
from kvgate.api.headers import request_headers
from kvgate.api.model_name import body_with_model, model_of, request_with_model
from kvgate.api.parse import BadRequest, parse
from kvgate.api.priority import body_with_priority
from kvgate.api.relay import Receive, Scope, Send, Serve
from kvgate.api.rewrite import with_max_tokens
from kvgate.api.wishes import Wishes, wishes_of
from kvgate_policies.types import Endpoint, InferenceRequest, Outcome, TenantPolicy

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from kvgate.api.pools import PoolLine, Pools
    from kvgate.api.routes import Route
    from kvgate.config.tenants import TenantBook
    from kvgate.telemetry.metrics import Telemetry
    from kvgate.telemetry.record import RequestRecord
    from kvgate.telemetry.traces import Trace

Entered = Callable[["PoolLine"], object]
"""Told as soon as the pool is known."""


@dataclass(slots=True)
class Visit:
    """One request while it is in the house."""

    scope: Scope
    receive: Receive
    send: Send
    record: RequestRecord
    arrived_s: float
    book: TenantBook
    """The policy as it was when the request came; it holds for it to its end."""
    telemetry: Telemetry | None = None
    """That of its pool, once it is known."""
    trace: Trace | None = None
    """Where traces are made."""


class Calls:
    """Makes what serves one request, from its body and the policy that was in force when it came."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    def serving(self, route: Route, visit: Visit, body: bytes, entered: Entered) -> Serve | Ended:
        """What the request's scope runs, or how it ended at the door already."""
        if route.endpoint is None:
            return self._passing(route, visit, body)
        return self._admitted(route.endpoint, visit, body, entered)

    def _admitted(self, endpoint: Endpoint, visit: Visit, body: bytes, entered: Entered) -> Serve | Ended:
        """What is priced and reserved."""
        record, content_type = visit.record, header_of(visit.scope, b"content-type")
        request = parse(endpoint, body, content_type)
        if isinstance(request, BadRequest):
            answer = Answer(Reason.BAD_REQUEST, request.message, param=request.param)
            return Ended(Outcome.REJECTED_BAD_REQUEST, answer)
        record.model, record.stream = request.model, request.stream
        record.prompts, record.n, record.max_tokens_asked = (
            len(request.prompts),
            request.n,
            request.max_tokens,
        )
        record.min_tokens, record.ignore_eos = request.min_tokens or None, request.ignore_eos or None
        line = self._pools.of_model(request.model)
        if line is None:
            return Ended(Outcome.REJECTED_UNKNOWN_MODEL, said.unknown_model(request.model))
        entered(line)
        policy = visit.book.policy(record.tenant, line.name)
        wishes = wishes_of(visit.scope["headers"], policy)
        if isinstance(wishes, Answer):
            return Ended(Outcome.REJECTED_BAD_REQUEST, wishes)
        record.priority_asked, record.deadline_s = wishes.priority_asked, wishes.deadline_s
        name = line.served_name(request.model)
        if name is not None:
            request = request_with_model(request, name)
            try:
                body = body_with_model(body, content_type, name)
            except ValueError:
                return Ended(Outcome.REJECTED_BAD_REQUEST, said.unwritable_model())
        if line.spec.priority:
            try:
                body = body_with_priority(body, endpoint, policy)
            except ValueError:
                return Ended(Outcome.REJECTED_BAD_REQUEST, said.unwritable_priority())
        call = _call(visit, body, policy, wishes, (line,), request)
        return lambda reply: line.admission.serve(request, call, reply, record)

    def _passing(self, route: Route, visit: Visit, body: bytes) -> Serve | Ended:
        """What costs nothing. What only one engine can know is asked of all of them, in all pools."""
        ask_all = visit.scope["method"] == "GET" or "{" in route.path
        lines, passing = self._pools.lines, self._pools.everywhere
        if not ask_all:
            content_type = header_of(visit.scope, b"content-type")
            model = model_of(body, content_type)
            line = self._pools.of_model(model)
            if line is None:
                return Ended(Outcome.REJECTED_UNKNOWN_MODEL, said.unknown_model(model))
            lines, passing = (line,), line.passing
            name = line.served_name(model)
            try:
                body = body if name is None else body_with_model(body, content_type, name)
            except ValueError:
                return Ended(Outcome.REJECTED_BAD_REQUEST, said.unwritable_model())
        policy = TenantPolicy(visit.record.tenant)  # that it has an identity is all that counts here
        call = _call(visit, body, policy, Wishes(policy.priority), lines)
        return lambda reply: passing.serve(call, reply, ask_all=ask_all)


def _call(
    visit: Visit,
    body: bytes,
    policy: TenantPolicy,
    wishes: Wishes,
    lines: tuple[PoolLine, ...],
    request: InferenceRequest | None = None,
) -> Call:
    field = request.max_tokens_field if request is not None else ""
    return Call(
        visit.scope["method"],
        path_and_query(visit.scope),
        _headers(visit, lines),
        body,
        visit.arrived_s,
        policy,
        wishes.priority,
        wishes.deadline_s,
        lambda limit: with_max_tokens(body, field, limit),
        visit.trace,
    )


def _headers(visit: Visit, lines: tuple[PoolLine, ...]) -> list[tuple[bytes, bytes]]:
    """The client's headers as they go to the engines of these pools."""
    rules = visit.book.identity
    has_key = any(line.spec.backend_api_key is not None for line in lines)
    return request_headers(
        visit.scope["headers"],
        visit.record.request_id,
        strip_credentials=has_key or rules.source != "anonymous",
        identity_header=rules.header if rules.source == "header" else "",
    )


def raw_path(scope: MutableMapping[str, Any]) -> str:
    """The path as it came, before percent-decoding: what is matched is what would be forwarded."""
    return bytes(scope["raw_path"]).decode("latin-1")


def path_and_query(scope: MutableMapping[str, Any]) -> str:
    query = scope["query_string"]
    return raw_path(scope) + ("?" + query.decode("latin-1") if query else "")


def header_of(scope: MutableMapping[str, Any], name: bytes) -> str:
    """The first header of that name; empty when there is none."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return ""
