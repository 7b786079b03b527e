"""What the pool says about its engines, to people and to metrics: snapshots, never live objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvgate.engines.health import State
    from kvgate.engines.metrics import Gauges
    from kvgate_policies.types import EngineLimits


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine now. A backend that was never discovered stands as one engine without limits."""

    id: str
    url: str
    state: State
    why: str = ""
    """What put it in this state, in words."""
    limits: EngineLimits | None = None
    """None while its capacity is unknown."""
    gauges: Gauges | None = None
    """Its own numbers at the last scrape that had them."""
    gauges_age_s: float | None = None
    """Since they were last new: read, and not the same as before although it works."""
    elected: bool = False
    """Whether this process is the one that scrapes it each second; the others do every ten."""
    current: bool = False
    """It is, and the numbers are those of now."""
    trust: float | None = None
    """In its capacity, 0.5 to 1; lowered by preemptions. None, as the next two, before a scrape or once it is old."""
    bias: float | None = None
    """It uses so many times what the ledger takes to be held."""
    foreign_blocks: float | None = None
    """In use, and not by requests of the ledger."""
    drift_blocks: float | None = None
    """At the last scrape: in use, less what the ledger counted there, the part for chance included."""
    blocks_usable: int | None = None
    """What the ledger may fill by that; None: all."""
    stalled: bool = False
    stalls: int = 0
    """How often it was found stalled by this process."""
    probe_age_s: float | None = None
    """Since the last probe of its backend ended, whatever it found; None before the first."""
    last_error: str | None = None
    """What was wrong at the last probe."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each number of `limits` came from."""
    warnings: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BackendReport:
    """What discovery found at one URL; the backend is of use exactly when `errors` is empty."""

    url: str
    engines: tuple[EngineStatus, ...]
    models: tuple[str, ...]
    sources: Mapping[str, str]
    warnings: tuple[str, ...]
    errors: tuple[str, ...]
    """Each says what is wrong and, where an option helps, which one."""
