"""Traces by OpenTelemetry's SDK. The only room that knows it, with `otel_export`.

The times in one trace come from one clock: the wall clock is read once, when a request comes, and everything after
it counts from there by the monotonic one, so that a child never lies outside its parent because somebody set the
clock. An unsampled request has no spans but carries its context on, so that the engine decides as we did.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvgate import __version__
from kvgate.telemetry import span_attributes as attributes
from kvgate.telemetry.otel_export import CountedExporter, batching, flush, resource
from kvgate.telemetry.traces import Phase, SpanCount

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    from opentelemetry.sdk.trace import SpanProcessor

    from kvgate.clock import Clock
    from kvgate.telemetry.record import RequestRecord
    from kvgate.telemetry.span_attributes import Attributes
    from kvgate.telemetry.traces import Header

PARENT, STATE = b"traceparent", b"tracestate"
"""W3C Trace Context. `baggage` passes as any other header does."""
FIRST_TOKEN = "first_token"  # noqa: S105  the name of an event

_propagator = TraceContextTextMapPropagator()


@asynccontextmanager
async def exporting(
    endpoint: str, sample: float, clock: Clock, count: Callable[[SpanCount, int], None]
) -> AsyncGenerator[OtelTracer]:
    """A tracer that sends to the collector at `endpoint`. On leaving, what waits is sent, within a bound."""
    tracer = OtelTracer(batching(CountedExporter(endpoint, count)), sample, clock, count)
    try:
        yield tracer
    finally:
        await flush(tracer.provider)


class OtelTracer:
    """Implements `traces.Tracer`."""

    def __init__(
        self,
        processor: SpanProcessor,
        sample: float,
        clock: Clock,
        count: Callable[[SpanCount, int], None],
    ) -> None:
        """`sample` is the share of traces begun here that are kept; one begun elsewhere follows its beginning."""
        self.provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample)), resource=resource(), shutdown_on_exit=False
        )
        self.provider.add_span_processor(processor)
        self.spans = self.provider.get_tracer("kvgate", __version__)
        self.clock = clock
        self.count = count

    def begin(
        self,
        record: RequestRecord,
        method: str,
        route: str | None,
        headers: Sequence[Header],
        arrived_s: float,
    ) -> OtelTrace:
        """As `traces.Tracer.begin`."""
        return OtelTrace(self, record, method, route, _incoming(headers), arrived_s)


@dataclass(slots=True)
class _Child:
    """A phase that is open, or is over and not ended yet."""

    phase: Phase
    span: api.Span
    at: str
    over_ns: int | None = None
    trouble: str | None = None


class OtelTrace:
    """Implements `traces.Trace`."""

    def __init__(
        self,
        tracer: OtelTracer,
        record: RequestRecord,
        method: str,
        route: str | None,
        parent: Context,
        arrived_s: float,
    ) -> None:
        self._tracer = tracer
        self._record = record
        self._method = method
        self._route = route
        self._arrived_s = arrived_s
        self._arrived_ns = time.time_ns() - round((tracer.clock.monotonic() - arrived_s) * 1e9)
        self._root = tracer.spans.start_span(
            attributes.name(method, route), parent, api.SpanKind.SERVER, start_time=self._arrived_ns
        )
        self._inside = api.set_span_in_context(self._root, Context())
        self._child: _Child | None = None
        self._ended = 0
        if self._root.is_recording():
            record.trace_id = api.format_trace_id(self._root.get_span_context().trace_id)

    def enter(self, phase: Phase, *, after: str | None = None, at: str = "") -> None:
        """As `traces.Trace.enter`."""
        if not self._root.is_recording():
            return
        self._end_child(after)
        kind = api.SpanKind.CLIENT if phase is Phase.RELAY else api.SpanKind.INTERNAL
        span = self._tracer.spans.start_span(phase.value, self._inside, kind, start_time=self._now_ns())
        self._child = _Child(phase, span, at)

    def leave(self, trouble: str | None = None) -> None:
        """As `traces.Trace.leave`."""
        if self._child is not None and self._child.over_ns is None:
            self._child.over_ns, self._child.trouble = self._now_ns(), trouble

    def outgoing(self, headers: Iterable[Header]) -> list[Header]:
        """As `traces.Trace.outgoing`."""
        carrier: dict[str, str] = {}
        here = self._root if self._child is None else self._child.span
        _propagator.inject(carrier, api.set_span_in_context(here, Context()))
        own = [(name.encode(), value.encode("latin-1")) for name, value in carrier.items()]
        return [*(header for header in headers if header[0] not in {PARENT, STATE}), *own]

    def end(self) -> None:
        """As `traces.Trace.end`."""
        if not self._root.is_recording():
            return
        self._end_child(attributes.error_of(self._record), last=True)
        self._root.set_attributes(attributes.of_request(self._method, self._route, self._record))
        self._end(self._root, attributes.error_of(self._record), self._now_ns())
        self._tracer.count(SpanCount.ENDED, self._ended)

    def _end_child(self, trouble: str | None, *, last: bool = False) -> None:
        """End the phase that is open, or was left; in the last one the request found its end."""
        child, self._child = self._child, None
        if child is None:
            return
        child.span.set_attributes(self._told(child, last=last))
        ttft_s = self._record.ttft_s if last and child.phase is Phase.RELAY else None
        if ttft_s is not None:
            child.span.add_event(FIRST_TOKEN, timestamp=self._ns_of(self._arrived_s + ttft_s))
        self._end(child.span, trouble or child.trouble, child.over_ns or self._now_ns())

    def _told(self, child: _Child, *, last: bool) -> Attributes:
        end = attributes.of_end(self._record) if last else {}
        match child.phase:
            case Phase.RESERVE:
                return attributes.of_reserve(self._record) | end
            case Phase.QUEUE:
                return attributes.of_queue(self._record) | end
            case Phase.RELAY:
                return attributes.of_relay(child.at, self._record, last=last) | end

    def _end(self, span: api.Span, trouble: str | None, at_ns: int) -> None:
        if trouble is not None:
            span.set_attribute("error.type", trouble)
            span.set_status(api.StatusCode.ERROR, trouble)
        span.end(at_ns)
        self._ended += 1

    def _now_ns(self) -> int:
        return self._ns_of(self._tracer.clock.monotonic())

    def _ns_of(self, moment_s: float) -> int:
        """Unix time of a moment by the process's clock."""
        return self._arrived_ns + round((moment_s - self._arrived_s) * 1e9)


def _incoming(headers: Iterable[Header]) -> Context:
    """The trace that the client says this is part of. What is no `traceparent`, or is there twice, begins a new one
    (W3C Trace Context, section 3.2).
    """
    said = [(name, value) for name, value in headers if name in {PARENT, STATE}]
    parents = [value for name, value in said if name == PARENT]
    if len(parents) != 1:
        return Context()
    carrier = {"traceparent": parents[0].decode("latin-1")}
    states = [value.decode("latin-1") for name, value in said if name == STATE]
    if states:
        carrier["tracestate"] = ",".join(states)
    return _propagator.extract(carrier, Context())
