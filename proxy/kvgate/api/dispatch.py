"""The tenant-facing ASGI application: from a path to the scope that serves it.

A raw ASGI callable: a framework's routing and body handling would cost more than all of admission. What is not
in the route table never reaches a backend. Every request that is ours ends in exactly one record.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import anyio
import msgspec

from kvgate.admission import Answer, Call, Ended, Reason, said
from kvgate.admission.line import Admission
from kvgate.admission.passing import Passing
from kvgate.api.answers import render
from kvgate.api.body import NoBody, read_body
from kvgate.api.headers import clean_request_id, request_headers
from kvgate.api.parse import BadRequest, parse
from kvgate.api.relay import ASGIReply, Receive, Relay, Scope, Send
from kvgate.api.rewrite import with_max_tokens
from kvgate.api.routes import Dialect, MethodNotAllowed, NotFound, Route, Treatment, match
from kvgate.clock import Clock
from kvgate.config import Settings
from kvgate.telemetry.metrics import Telemetry
from kvgate.telemetry.record import RequestRecord
from kvgate_policies.types import InferenceRequest, Outcome

log = logging.getLogger(__name__)


class Models(Protocol):
    def models(self) -> list[dict[str, Any]]:
        """The merged model cards of the pool."""
        ...


class Gateway:
    """The application on the tenant port."""

    def __init__(
        self,
        *,
        admission: Admission,
        passing: Passing,
        models: Models,
        telemetry: Telemetry,
        log: Callable[[RequestRecord], None],
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._admission = admission
        self._passing = passing
        self._models = models
        self._telemetry = telemetry
        self._log = log
        self._clock = clock
        self._settings = settings
        self._active = 0
        self._idle = anyio.Event()
        self._relays: set[Relay] = set()
        self.draining = False

    @property
    def active(self) -> int:
        """Requests in the house, queued ones included."""
        return self._active

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": "not served here"})

    async def idle(self) -> None:
        """Wait until no request is in the house."""
        while self._active:
            self._idle = anyio.Event()
            await self._idle.wait()

    def break_off(self) -> None:
        """End everything that is still on its way; each client is told."""
        for relay in self._relays:
            relay.break_off()

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_s = self._clock.monotonic()
        headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        record = RequestRecord(clean_request_id(_header(headers, b"x-request-id")))
        record.tenant = self._settings.tenant.name
        self._active += 1
        try:
            await self._route(scope, receive, send, record, arrived_s)
        finally:
            self._active -= 1
            self._end(record, arrived_s)
            if not self._active:
                self._idle.set()

    def _end(self, record: RequestRecord, arrived_s: float) -> None:
        if record.outcome is None:  # only a foreign cancellation gets here without one
            record.outcome = Outcome.CLIENT_GONE
        if record.total_s is None:
            record.total_s = self._clock.monotonic() - arrived_s
        if record.endpoint is not None:
            self._telemetry.ended(record)
        self._log(record)

    async def _route(
        self, scope: Scope, receive: Receive, send: Send, record: RequestRecord, arrived_s: float
    ) -> None:
        route = match(scope["method"], _raw_path(scope))
        if isinstance(route, NotFound | MethodNotAllowed):
            await self._refuse(_no_route(route, scope), Dialect.OPENAI, record, send, _allow(route))
        elif self.draining:
            record.outcome = Outcome.REJECTED_DRAINING
            await self._refuse(said.draining(), route.dialect, record, send, ((b"connection", b"close"),))
        elif route.treatment is Treatment.MODELS:
            record.outcome = Outcome.SERVED
            body = msgspec.json.encode({"object": "list", "data": self._models.models()})
            reply = ASGIReply(send, record.request_id, record)
            await reply.whole(
                200,
                [(b"content-type", b"application/json"), (b"x-request-id", record.request_id.encode())],
                body,
            )
        else:
            await self._with_body(route, scope, receive, send, record, arrived_s)

    async def _with_body(
        self,
        route: Route,
        scope: Scope,
        receive: Receive,
        send: Send,
        record: RequestRecord,
        arrived_s: float,
    ) -> None:
        record.endpoint = route.endpoint
        if route.endpoint is not None:
            self._telemetry.arrived(route.endpoint, record.tenant)
        settings = self._settings
        body = await read_body(receive, scope["headers"], settings.body_bytes_max, settings.timeouts.body_s)
        if isinstance(body, NoBody):
            await self._no_body(body, route, record, send)
            return
        try:
            serve = self._serving(route, scope, body, record, arrived_s)
        except Exception:  # as in the relay: a bug of ours is an answer like any other
            log.exception("request %s could not be read", record.request_id)
            record.outcome = Outcome.INTERNAL_ERROR
            await self._refuse(said.internal_error(), route.dialect, record, send)
            return
        if isinstance(serve, BadRequest):
            record.outcome = Outcome.REJECTED_BAD_REQUEST
            answer = Answer(Reason.BAD_REQUEST, serve.message, param=serve.param)
            await self._refuse(answer, route.dialect, record, send)
            return
        relay = Relay(serve, route.dialect, record, self._clock)
        self._relays.add(relay)
        try:
            await relay(receive, send, arrived_s)
        finally:
            self._relays.discard(relay)

    def _serving(
        self, route: Route, scope: Scope, body: bytes, record: RequestRecord, arrived_s: float
    ) -> Callable[[ASGIReply], Awaitable[Ended]] | BadRequest:
        """What the request's scope runs."""
        if route.endpoint is None:
            call = self._call(scope, body, record, arrived_s, None)
            ask_all = scope["method"] == "GET" or "{" in route.path
            return lambda reply: self._passing.serve(call, reply, ask_all=ask_all)
        request = parse(route.endpoint, body, _header(scope["headers"], b"content-type"))
        if isinstance(request, BadRequest):
            return request
        record.model, record.stream = request.model, request.stream
        admitted = self._call(scope, body, record, arrived_s, request)
        return lambda reply: self._admission.serve(request, admitted, reply, record)

    def _call(
        self,
        scope: Scope,
        body: bytes,
        record: RequestRecord,
        arrived_s: float,
        request: InferenceRequest | None,
    ) -> Call:
        query = scope["query_string"]
        path = _raw_path(scope) + ("?" + query.decode("latin-1") if query else "")
        strip = self._settings.backend_api_key is not None
        headers = request_headers(scope["headers"], record.request_id, strip_credentials=strip)
        field = request.max_tokens_field if request is not None else ""
        return Call(
            scope["method"],
            path,
            headers,
            body,
            arrived_s,
            self._settings.tenant,
            lambda limit: with_max_tokens(body, field, limit),
        )

    async def _no_body(self, why: NoBody, route: Route, record: RequestRecord, send: Send) -> None:
        if why is NoBody.CLIENT_GONE:
            record.outcome = Outcome.CLIENT_GONE
            return
        record.outcome = Outcome.REJECTED_BAD_REQUEST
        settings = self._settings
        if why is NoBody.TOO_LARGE:
            answer = Answer(
                Reason.TOO_LARGE,
                f"The request body is larger than {settings.body_bytes_max} bytes, the most accepted.",
            )
        else:
            answer = Answer(
                Reason.BAD_REQUEST,
                f"The request body was not complete {settings.timeouts.body_s:g} s after the headers.",
                status=408,
            )
        await self._refuse(answer, route.dialect, record, send, ((b"connection", b"close"),))

    async def _refuse(
        self,
        answer: Answer,
        dialect: Dialect,
        record: RequestRecord,
        send: Send,
        extra: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        record.outcome = record.outcome or Outcome.REJECTED_BAD_REQUEST
        record.reason = answer.reason.value
        status, headers, body = render(answer, dialect, record.request_id)
        await ASGIReply(send, record.request_id, record).whole(status, [*headers, *extra], body)


def _raw_path(scope: Scope) -> str:
    """The path as it came, before percent-decoding: what is matched is what would be forwarded."""
    return bytes(scope["raw_path"]).decode("latin-1")


def _header(headers: list[tuple[bytes, bytes]], name: bytes) -> str:
    for key, value in headers:
        if key == name:
            return value.decode("latin-1")
    return ""


def _no_route(route: NotFound | MethodNotAllowed, scope: Scope) -> Answer:
    path = _raw_path(scope)[:200]
    if isinstance(route, NotFound):
        return Answer(Reason.NOT_FOUND, f"{path} is not served here. See /v1/models for what is.")
    allowed = ", ".join(route.allow)
    return Answer(
        Reason.METHOD_NOT_ALLOWED, f"{scope['method']} is not allowed on {path}; allowed: {allowed}."
    )


def _allow(route: NotFound | MethodNotAllowed) -> tuple[tuple[bytes, bytes], ...]:
    if isinstance(route, NotFound):
        return ()
    return ((b"allow", ", ".join(route.allow).encode()),)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
