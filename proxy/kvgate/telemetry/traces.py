"""What the line of a request says to a trace, and where traces come from.

A trace is told of phases that follow each other: it ends one when the next begins, and all that is open at the end
of the request, so that no way out of the line leaves a span open. Nothing here needs OpenTelemetry; `otel` does, and
is loaded only where an endpoint is set. Without one there is no trace, and a request costs a look at `None`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from kvgate.clock import Clock
    from kvgate.config.settings import Settings
    from kvgate.telemetry.record import RequestRecord

Header = tuple[bytes, bytes]


class Phase(StrEnum):
    """The spans within that of a request; a request that is tried again has several of each."""

    RESERVE = "reserve"
    """Its price is computed, and the ledger asked for room."""
    QUEUE = "queue"
    """It waits for its turn; none where there was room at once."""
    RELAY = "relay"
    """An engine works on it: one attempt, from the connection to the last byte."""


class SpanCount(StrEnum):
    """What became of spans, as the metrics count them."""

    ENDED = "ended"
    EXPORTED = "exported"
    FAILED = "failed"


class Trace(Protocol):
    """The trace of one request. Nothing in it waits, and nothing raises."""

    def enter(self, phase: Phase, *, after: str | None = None, at: str = "") -> None:
        """A phase begins, and the one before it ends. `after` is the trouble that the latter ended with, `at` the
        base URL of the engine that is asked.
        """
        ...

    def leave(self, trouble: str | None = None) -> None:
        """The phase is over; how it went is known later, unless it was this trouble. Harmless when none is open."""
        ...

    def outgoing(self, headers: Sequence[Header]) -> list[Header]:
        """The headers for an engine: its own spans become children of the phase that is open."""
        ...

    def end(self) -> None:
        """The request is over, and its record complete."""
        ...


class Tracer(Protocol):
    """Begins traces. One for a process."""

    def begin(
        self,
        record: RequestRecord,
        method: str,
        route: str | None,
        headers: Sequence[Header],
        arrived_s: float,
    ) -> Trace:
        """The trace of a request that arrived then, by the process's clock; it reads `record` as that fills.

        `route` is a path of the route table, None for one that is not in it. A valid `traceparent` among the
        headers is continued, and decides on sampling. Where the request is sampled, the record gets its trace id.
        """
        ...


@asynccontextmanager
async def tracing(
    settings: Settings, clock: Clock, count: Callable[[SpanCount, int], None]
) -> AsyncGenerator[Tracer | None]:
    """The tracer of this process; None where no endpoint is set. On leaving, what waits is sent, within a bound.

    `count` is told from any thread what became of spans.
    """
    if settings.otlp_endpoint is None:
        yield None
        return
    from kvgate.telemetry.otel import exporting  # noqa: PLC0415  the extra may not be installed

    async with exporting(settings.otlp_endpoint, settings.trace_sample, clock, count) as tracer:
        yield tracer
