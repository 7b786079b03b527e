"""What the admin port needs of the running process, as functions: it owns nothing of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from kvgate.config import Settings
    from kvgate.telemetry.metrics import Telemetry
    from kvgate.telemetry.scrape import EngineStatus
    from kvgate_policies.types import LedgerView

Ready = tuple[bool, dict[str, object]]


@dataclass(frozen=True, slots=True)
class AdminState:
    """All functions are called on the event loop that the process serves from."""

    settings: Settings
    telemetry: Telemetry
    ledger_view: Callable[[], LedgerView]
    engine_statuses: Callable[[], Sequence[EngineStatus]]
    ready: Callable[[], Ready]
    """Whether new requests can be served, and the parts of that answer. Never depends on how busy it is."""
    drain: Callable[[str], Awaitable[None]]
    """No new work for this engine."""
    undrain: Callable[[str], Awaitable[None]]
