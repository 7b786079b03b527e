"""Faults on demand: for one request by its `x-sim-fault` header, or for the next ones by `POST /sim/faults`.

A fault is written `name` or `name=N`; N is tokens of output after which it strikes, or seconds for a fault of
the server. What each does is in `Fault`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FAULTS_QUEUED_MAX = 10_000
"""Faults waiting for requests: more is a typing error in a test."""


class Fault(StrEnum):
    # Faults of a request
    REFUSE = "refuse"
    """The connection breaks, and new ones are refused for N seconds (1)."""
    RESET_BEFORE = "reset-before"
    """The connection breaks before a byte of the answer."""
    RESET_AFTER = "reset-after"
    """The connection breaks after N tokens (1); 0: right after the status line of a stream."""
    HANG = "hang"
    """Not a byte of an answer, ever; the other routes answer."""
    HANG_AFTER = "hang-after"
    """The stream goes silent after N tokens (1)."""
    BUSY = "busy"
    """vLLM's "currently busy" 503."""
    BUSY_IN_STREAM = "busy-in-stream"
    """The same as vLLM sends it when a stream loses the race: 200 and an error event."""
    ERROR_IN_STREAM = "error-in-stream"
    """The engine dies after N tokens (1): 200, an error event, [DONE]."""
    ABORT = "abort"
    """finish_reason `abort` after N tokens (1), as on SIGTERM."""
    EMPTY = "empty"
    """200 without a token, as a draining vLLM answers."""
    ERROR_500 = "500"

    # Faults of the server, until cleared
    FREEZE = "freeze"
    """Requests are taken and held; `/health` says 200, gauges stand still."""
    METRICS_SLOW = "metrics-slow"
    """`/metrics` takes N seconds (5)."""
    METRICS_STALE = "metrics-stale"
    """`/metrics` repeats what it said when this began."""
    METRICS_MISSING = "metrics-missing"
    """`/metrics` has no `vllm:` series."""
    HEALTH_503 = "health-503"


OF_THE_SERVER = frozenset(
    (Fault.FREEZE, Fault.METRICS_SLOW, Fault.METRICS_STALE, Fault.METRICS_MISSING, Fault.HEALTH_503)
)
_STRIKES_AFTER_TOKENS = frozenset((Fault.RESET_AFTER, Fault.HANG_AFTER, Fault.ERROR_IN_STREAM, Fault.ABORT))


@dataclass(frozen=True, slots=True)
class Strike:
    fault: Fault
    amount: float | None = None

    @property
    def after_tokens(self) -> int | None:
        """Tokens of output after which it strikes; None when it strikes at once."""
        if self.fault not in _STRIKES_AFTER_TOKENS:
            return None
        return int(self.amount) if self.amount is not None else 1


def parse_strike(text: str) -> Strike:
    """`name` or `name=N`. Raises `ValueError` naming the faults there are."""
    name, separator, amount = text.strip().partition("=")
    if name not in set(Fault):
        raise ValueError(f"no fault {name!r}: there are {', '.join(Fault)}")
    if not separator:
        return Strike(Fault(name))
    try:
        value = float(amount)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise ValueError(f"{text!r}: N is a number of tokens or seconds, 0 or more")
    return Strike(Fault(name), value)


class Faults:
    """What is to go wrong. Takes effect on requests in the order they arrive."""

    def __init__(self) -> None:
        self._next: deque[Strike] = deque()
        self.server: dict[Fault, Strike] = {}

    def add(self, strike: Strike, count: int = 1) -> None:
        """For the next `count` generating requests, or, a fault of the server, until cleared.

        Raises `ValueError` beyond `FAULTS_QUEUED_MAX`.
        """
        if strike.fault in OF_THE_SERVER:
            self.server[strike.fault] = strike
            return
        if not 0 < count <= FAULTS_QUEUED_MAX - len(self._next):
            raise ValueError(f"count {count}: between 1 and {FAULTS_QUEUED_MAX} faults can wait")
        self._next.extend([strike] * count)

    def clear(self) -> None:
        self._next.clear()
        self.server.clear()

    def take(self, headers: Mapping[str, str]) -> Strike | None:
        """The fault of this request; its own header comes first. Raises `ValueError` for an unknown one."""
        wished = headers.get("x-sim-fault")
        if wished is not None:
            return parse_strike(wished)
        return self._next.popleft() if self._next else None

    @property
    def waiting(self) -> int:
        return len(self._next)
