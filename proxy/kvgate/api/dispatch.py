"""The tenant-facing ASGI application: from a path to the scope that serves it.

A raw ASGI callable: a framework's routing and body handling would cost more than all of admission. What is not
in the route table never reaches a backend. Every request that is ours ends in exactly one record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio
import msgspec

from kvgate.admission import Answer, Ended, Reason, said
from kvgate.api.answers import render
from kvgate.api.body import Bodies, NoBody
from kvgate.api.calls import Calls, Visit, header_of, raw_path
from kvgate.api.headers import clean_request_id
from kvgate.api.identity import NOBODY, Identity
from kvgate.api.pools import Pools
from kvgate.api.relay import ASGIReply, Receive, Relay, Scope, Send
from kvgate.api.routes import Dialect, MethodNotAllowed, NotFound, Route, Treatment, match
from kvgate.clock import Clock
from kvgate.config import Settings
from kvgate.config.live import LivePolicy
from kvgate.telemetry.metrics import Telemetry
from kvgate.telemetry.record import RequestRecord
from kvgate.telemetry.traces import Tracer
from kvgate_policies.types import Outcome

log = logging.getLogger(__name__)


class Gateway:
    """The application on the tenant port."""

    def __init__(
        self,
        *,
        pools: Pools,
        live: LivePolicy,
        nowhere: Telemetry,
        log: Callable[[RequestRecord], None],
        clock: Clock,
        settings: Settings,
    ) -> None:
        """`nowhere` counts requests that end before their pool is known: the pool's own where there is only one."""
        self._pools = pools
        self._live = live
        self._nowhere = nowhere
        self._log = log
        self._clock = clock
        self._settings = settings
        self._identity = Identity(clock)
        self._calls = Calls(pools)
        self._active = 0
        self._idle = anyio.Event()
        self._relays: set[Relay] = set()
        self._bodies = Bodies()
        self.draining = False
        self.tracer: Tracer | None = None
        """What begins traces, once the process runs and if it makes any."""

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

    def begin_draining(self) -> None:
        """Take no new work, and wait for no client that has not sent all of its request."""
        self.draining = True
        self._bodies.give_up()

    def break_off(self) -> None:
        """End everything that is still on its way; each client is told."""
        for relay in self._relays:
            relay.break_off()

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_s = self._clock.monotonic()
        record = RequestRecord(clean_request_id(header_of(scope, b"x-request-id")))
        visit = Visit(scope, receive, send, record, arrived_s, self._live.current)
        self._active += 1
        try:
            await self._route(visit)
        finally:
            self._active -= 1
            self._end(visit)
            if not self._active:
                self._idle.set()

    def _end(self, visit: Visit) -> None:
        record = visit.record
        if record.outcome is None:  # only a foreign cancellation gets here without one
            record.outcome = Outcome.CLIENT_GONE
        if record.total_s is None:
            record.total_s = self._clock.monotonic() - visit.arrived_s
        if record.endpoint is not None:
            self._enter(visit, self._nowhere).ended(record)
        if visit.trace is not None:
            visit.trace.end()
        self._log(record)

    def _enter(self, visit: Visit, telemetry: Telemetry) -> Telemetry:
        """Count the request in where it belongs, the first time that this is told; gives that place."""
        if visit.telemetry is None:
            visit.telemetry, visit.record.pool = telemetry, telemetry.pool
            if visit.record.endpoint is not None:
                telemetry.arrived(visit.record.endpoint, visit.record.tenant)
        return visit.telemetry

    async def _route(self, visit: Visit) -> None:
        scope, record = visit.scope, visit.record
        anonymous = visit.book.identity.source == "anonymous"
        record.tenant = visit.book.names[0] if anonymous else NOBODY
        route = match(scope["method"], raw_path(scope))
        if self.tracer is not None:
            path = route.path if isinstance(route, Route) else None
            visit.trace = self.tracer.begin(record, scope["method"], path, scope["headers"], visit.arrived_s)
        if isinstance(route, NotFound | MethodNotAllowed):
            await self._refuse(_no_route(route, scope), Dialect.OPENAI, visit, _allow(route))
        elif self.draining:
            record.outcome = Outcome.REJECTED_DRAINING
            await self._refuse(said.draining(), route.dialect, visit, ((b"connection", b"close"),))
        else:
            await self._let_in(route, visit)

    async def _let_in(self, route: Route, visit: Visit) -> None:
        """Whoever has no business here is told so before its body is read."""
        record = visit.record
        record.endpoint = route.endpoint
        try:
            tenant = await self._identity.of(visit.scope, visit.book)
        except Exception:  # whoever can't be told from a stranger is not let in
            log.exception("the tenant of request %s could not be found", record.request_id)
            record.outcome = Outcome.INTERNAL_ERROR
            tenant = said.internal_error()
        if isinstance(tenant, Answer):
            record.outcome = record.outcome or Outcome.REJECTED_UNAUTHORIZED
            await self._refuse(tenant, route.dialect, visit)
            return
        record.tenant = tenant
        if route.treatment is Treatment.MODELS:
            await self._models(visit)
        else:
            await self._with_body(route, visit)

    async def _models(self, visit: Visit) -> None:
        record = visit.record
        record.outcome = Outcome.SERVED
        body = msgspec.json.encode({"object": "list", "data": self._pools.models()})
        headers = [(b"content-type", b"application/json"), (b"x-request-id", record.request_id.encode())]
        await ASGIReply(visit.send, record.request_id, record).whole(200, headers, body)

    async def _with_body(self, route: Route, visit: Visit) -> None:
        settings, scope, record = self._settings, visit.scope, visit.record
        if len(self._pools.lines) == 1:
            self._enter(visit, self._pools.lines[0].telemetry)
        body = await self._bodies.read(
            visit.receive, scope["headers"], settings.body_bytes_max, settings.timeouts.body_s
        )
        if isinstance(body, NoBody):
            await self._no_body(body, route, visit)
            return
        try:
            serve = self._calls.serving(route, visit, body, lambda line: self._enter(visit, line.telemetry))
        except Exception:  # as in the relay: a bug of ours is an answer like any other
            log.exception("request %s could not be read", record.request_id)
            serve = Ended(Outcome.INTERNAL_ERROR, said.internal_error())
        if isinstance(serve, Ended):
            record.outcome = serve.outcome
            await self._refuse(serve.answer or said.internal_error(), route.dialect, visit)
            return
        relay = Relay(serve, route.dialect, record, self._clock)
        self._relays.add(relay)
        try:
            await relay(visit.receive, visit.send, visit.arrived_s)
        finally:
            self._relays.discard(relay)

    async def _no_body(self, why: NoBody, route: Route, visit: Visit) -> None:
        record = visit.record
        if why is NoBody.CLIENT_GONE:
            record.outcome = Outcome.CLIENT_GONE
            return
        draining = why is NoBody.DRAINING
        record.outcome = Outcome.REJECTED_DRAINING if draining else Outcome.REJECTED_BAD_REQUEST
        settings = self._settings
        if draining:
            answer = said.draining()
        elif why is NoBody.TOO_LARGE:
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
        await self._refuse(answer, route.dialect, visit, ((b"connection", b"close"),))

    async def _refuse(
        self,
        answer: Answer,
        dialect: Dialect,
        visit: Visit,
        extra: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        record = visit.record
        record.outcome = record.outcome or Outcome.REJECTED_BAD_REQUEST
        record.reason, record.told = answer.reason.value, answer.message
        status, headers, body = render(answer, dialect, record.request_id)
        await ASGIReply(visit.send, record.request_id, record).whole(status, [*headers, *extra], body)


def _no_route(route: NotFound | MethodNotAllowed, scope: Scope) -> Answer:
    path = raw_path(scope)[:200]
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
