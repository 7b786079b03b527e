"""A collector of traces for tests: a real HTTP server that takes OTLP over HTTP, decodes it, and keeps the spans.

with Collector() as collector:
    run(f"KVGATE_OTLP_ENDPOINT={collector.url}")
    spans = collector.until(lambda spans: len(spans) == 4)
"""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

SOON_S = 15.0
"""For a batch to come; a second is usual."""
KINDS = {1: "internal", 2: "server", 3: "client"}
STATUSES = {0: "unset", 1: "ok", 2: "error"}


@dataclass(frozen=True, slots=True)
class Span:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty for one without a parent."""
    kind: str
    status: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    events: Mapping[str, int]
    """Name → Unix time in nanoseconds."""
    resource: Mapping[str, Any] = field(default_factory=dict)
    trace_state: str = ""

    @property
    def length_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    def within(self, other: Span) -> bool:
        return other.start_ns <= self.start_ns <= self.end_ns <= other.end_ns


class Collector:
    """`status` is what it answers, `wait_s` how long it takes to."""

    def __init__(self, status: int = 200, wait_s: float = 0.0) -> None:
        self.status = status
        self.wait_s = wait_s
        self.spans: list[Span] = []
        self.requests: list[tuple[str, Mapping[str, str]]] = []
        """Path and headers of each."""
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def until(self, enough: Callable[[list[Span]], bool]) -> list[Span]:
        """The spans, once there are enough of them."""
        end_s = time.monotonic() + SOON_S
        spans: list[Span] = []
        while time.monotonic() < end_s:
            with self._lock:
                spans = list(self.spans)
            if enough(spans):
                return spans
            time.sleep(0.02)
        raise AssertionError(f"never enough spans: {[(span.name, span.attributes) for span in spans]}")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                collector._closing.wait(collector.wait_s)
                collector._take(self.path, dict(self.headers.items()), body)
                try:
                    self.send_response(collector.status)
                    self.send_header("content-type", "application/x-protobuf")
                    self.send_header("content-length", "0")
                    self.end_headers()
                except OSError:  # whoever sent it has not waited
                    pass

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _take(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        with self._lock:
            self.requests.append((path, headers))
            if self.status == 200:
                self.spans += _spans(request)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(SOON_S)


def _spans(request: Any) -> list[Span]:
    return [
        Span(
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            KINDS[span.kind],
            STATUSES[span.status.code],
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            _attributes(span.attributes),
            {event.name: event.time_unix_nano for event in span.events},
            _attributes(of_resource.resource.attributes),
            span.trace_state,
        )
        for of_resource in request.resource_spans
        for scope in of_resource.scope_spans
        for span in scope.spans
    ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
