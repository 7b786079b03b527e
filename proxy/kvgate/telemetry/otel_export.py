"""How spans leave the process: OTLP over HTTP, in batches, from a thread behind a bounded queue.

A collector that is slow or away costs requests nothing: its spans wait, then the oldest are dropped. The log says
when exporting begins to fail and when it works again, and nothing in between; the metrics count every span. The
collector's credentials, certificates and proxies are those of the standard variables (`OTEL_EXPORTER_OTLP_HEADERS`,
`…_CERTIFICATE`), which the exporter reads itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import TYPE_CHECKING

import anyio
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from kvgate import __version__
from kvgate.config.redaction import redacted
from kvgate.telemetry.traces import SpanCount

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

PATH = "/v1/traces"
"""OTLP/HTTP appends it to the base URL of a collector."""
QUEUE_SPANS_MAX = 8192
"""Spans that wait: some 2,000 requests, about 20 MB."""
BATCH_SPANS_MAX = 512
"""Spans in one request: about 200 KB before compression."""
BATCH_EACH_S = 1.0
"""A span waits at most so long for others to go with it."""
EXPORT_S_MAX = 5.0
"""For a batch, its repetitions included; then it is lost. Longer, and the queue behind it is."""
FLUSH_S_MAX = 3.0
"""At the end, for what waits. It comes on top of the drain, and the orchestrator is waiting."""
LIBRARY = "opentelemetry"
OF_EXPORTING = ("opentelemetry.exporter", "opentelemetry.sdk")
"""The logger of the library, and those of its parts that say why nothing is exported."""

log = logging.getLogger(__name__)


def batching(exporter: SpanExporter) -> BatchSpanProcessor:
    """The queue before an exporter, and its thread."""
    return BatchSpanProcessor(
        exporter,
        max_queue_size=QUEUE_SPANS_MAX,
        schedule_delay_millis=BATCH_EACH_S * 1000,
        max_export_batch_size=BATCH_SPANS_MAX,
        export_timeout_millis=EXPORT_S_MAX * 1000,
    )


def resource() -> Resource:
    """Who sends: what the standard variables say (`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`), and else kvgate."""
    told = Resource.create({})
    own: dict[str, str] = {SERVICE_VERSION: __version__}
    if str(told.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        own[SERVICE_NAME] = "kvgate"
    if SERVICE_INSTANCE_ID not in told.attributes:
        own[SERVICE_INSTANCE_ID] = f"{os.uname().nodename}:{os.getpid()}"
    return told.merge(Resource(own))


async def flush(provider: TracerProvider) -> None:
    """Send what waits, at most `FLUSH_S_MAX` long, and stop. A thread that is stuck ends with the process."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def shut_down() -> None:
        try:
            provider.shutdown()
        finally:
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=shut_down, name="traces-flush", daemon=True).start()
    with anyio.move_on_after(FLUSH_S_MAX, shield=True):
        await done.wait()
    if not done.is_set():
        log.warning("traces: the last spans were not sent in %g s, and are lost", FLUSH_S_MAX)


class CountedExporter(SpanExporter):
    """Exports to a collector, counts, and says in the log when that begins and ceases to fail."""

    def __init__(self, endpoint: str, count: Callable[[SpanCount, int], None]) -> None:
        self._endpoint = endpoint
        self._count = count
        self._inner = OTLPSpanExporter(
            endpoint.rstrip("/") + PATH, timeout=EXPORT_S_MAX, compression=Compression.Gzip
        )
        self._reasons = _Reasons()
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """On the processor's thread. Raises nothing."""
        self._reasons.forget()
        try:
            result = self._inner.export(spans)
        except Exception as error:  # noqa: BLE001  a bug of the library ends no thread of ours
            self._reasons.first = repr(error)
            result = SpanExportResult.FAILURE
        good = result is SpanExportResult.SUCCESS
        self._count(SpanCount.EXPORTED if good else SpanCount.FAILED, len(spans))
        self._say(failing=not good)
        return result

    def shutdown(self) -> None:
        """Give up what is being sent."""
        self._inner.shutdown()  # type: ignore[no-untyped-call]
        self._reasons.close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits here."""
        del timeout_millis
        return True

    def _say(self, *, failing: bool) -> None:
        if failing and not self._failing:
            log.warning(
                "traces cannot be sent to %s (%s); requests are not affected",
                self._shown,
                self._reasons.first or "no reason given",
            )
        elif self._failing and not failing:
            log.info("traces are sent again to %s", self._shown)
        self._failing = failing

    @property
    def _shown(self) -> str:
        return redacted(self._endpoint)


class _Reasons(logging.Handler):
    """Listens to the library's own log, and keeps the first line of a batch. None of it goes into ours: there would
    be one for each repetition, and for each `tracestate` that a client made up, with what it wrote.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.forget()
        self._library = logging.getLogger(LIBRARY)
        self._propagated = self._library.propagate
        self._library.propagate = False
        self._library.addHandler(self)

    def forget(self) -> None:
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        if not self.first and record.name.startswith(OF_EXPORTING):
            self.first = record.getMessage()

    def close(self) -> None:
        self._library.removeHandler(self)
        self._library.propagate = self._propagated
        super().close()
