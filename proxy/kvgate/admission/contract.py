"""What the line of a request takes and gives: the call, the reply, and how it ended.

The API layer makes a `Call` and a `Reply`; `line.Admission` serves it and says in an `Ended` how it went. Bytes
of the engine go through the reply unchanged; what kvgate itself has to say is an `Answer`, a value that the API
layer gives its status, headers and dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from kvgate.sse import SSEMeter
from kvgate.telemetry.traces import Trace
from kvgate_policies.types import Outcome, PriorityClass, TenantPolicy

Header = tuple[bytes, bytes]


class Reason(StrEnum):
    """`x-kvgate-reason`: why kvgate itself answered. `api.answers` has the status and headers of each."""

    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    TENANT_RATE = "tenant_rate"
    NEVER_FITS = "never_fits"
    NO_BACKEND = "no_backend"
    LEDGER_UNAVAILABLE = "ledger_unavailable"
    DRAINING = "draining"
    UPSTREAM_FAILED = "upstream_failed"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    DEADLINE = "deadline"
    UNAUTHORIZED = "unauthorized"
    UNKNOWN_MODEL = "unknown_model"
    BAD_REQUEST = "bad_request"
    TOO_LARGE = "too_large"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    INTERNAL_ERROR = "internal_error"


@dataclass(frozen=True, slots=True)
class Answer:
    """What kvgate itself has to say; the API layer gives it its status, headers and dialect."""

    reason: Reason
    message: str
    """One or two sentences: what was full or wrong, and what to do."""
    retry_after_s: float | None = None
    param: str | None = None
    code: str | None = None
    status: int | None = None
    """Overrides the reason's status (a tenant's `overload_status`)."""
    exact: bool = False
    """`retry_after_s` is when it will pass, not an estimate: it is said as it is, without jitter."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a request ended; `answer` is set when kvgate has to say something (JSON, or one terminal event)."""

    outcome: Outcome
    answer: Answer | None = None
    meter: SSEMeter | None = None
    """What was read of a stream that broke off, so that the last event fits it."""


class Reply(Protocol):
    """The way to the client. Bytes of the engine go through it unchanged."""

    @property
    def started(self) -> bool:
        """The status line is out: from here on only the body can say that something went wrong."""
        ...

    async def start(self, status: int, headers: Sequence[Header], facts: Sequence[Header]) -> None:
        """Send the engine's status and headers; `facts` are kvgate's own headers (`x-kvgate-…`)."""
        ...

    async def send(self, chunk: bytes) -> None: ...

    async def finish(self, last: bytes = b"") -> None:
        """The body is complete, with `last` as its last bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """The HTTP side of a request, ready to be forwarded."""

    method: str
    path: str
    """Path and query as they came."""
    headers: Sequence[Header]
    """Fit for the engine: no hop-by-hop ones, no `host`, no `content-length`."""
    body: bytes
    arrived_s: float
    """By the process's clock: every bound of time counts from here."""
    tenant: TenantPolicy
    priority: PriorityClass
    """The tenant's class, or the lower one that the request asks for."""
    deadline_s: float | None
    """The longest wait in the queue that the request asks for, from arrival."""
    with_max_tokens: Callable[[int], bytes]
    """The body with the ruling limit set to a value; the only change that the line makes to it."""
    trace: Trace | None = None
    """What is told of its phases, where traces are made."""

    @property
    def wait_s_max(self) -> float:
        """The longest wait in the queue, from arrival: the tenant's, which a request can only shorten."""
        wait_s = self.tenant.queue_wait_s_max
        return wait_s if self.deadline_s is None else min(wait_s, self.deadline_s)

    @property
    def enforced(self) -> bool:
        """Whether the policy holds; otherwise the request starts at once, and nothing of it is changed."""
        return self.tenant.mode == "enforce"
