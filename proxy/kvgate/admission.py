"""The straight line of one request. (Contract; the line itself follows.)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from kvgate_policies.types import Outcome

Header = tuple[bytes, bytes]


class Reason(StrEnum):
    """`x-kvgate-reason`: why kvgate itself answered. `api.answers` has the status and headers of each."""

    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
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


@dataclass(frozen=True, slots=True)
class Ended:
    """How a request ended; `answer` is set when kvgate has to say something (JSON, or one terminal event)."""

    outcome: Outcome
    answer: Answer | None = None


class Reply(Protocol):
    """The way to the client. Bytes of the engine go through it unchanged."""

    @property
    def started(self) -> bool: ...

    async def start(self, status: int, headers: Sequence[Header]) -> None: ...

    async def send(self, chunk: bytes) -> None: ...

    async def finish(self) -> None: ...
