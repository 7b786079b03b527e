"""What the admin port needs of the running process, as functions and values: it owns nothing of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from kvgate.config import Settings
    from kvgate.config.standing import Standing
    from kvgate.config.tenants import TenantBook
    from kvgate.telemetry.metrics import Telemetry
    from kvgate.telemetry.pools import PoolsTelemetry
    from kvgate.telemetry.scrape import EngineStatus
    from kvgate_policies.types import LedgerView

Ready = tuple[bool, dict[str, object]]


JOINING = "joining"
"""Among the parts of readiness: `yes` for a worker that no client gets to yet, since the others serve meanwhile."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """One pool, as the admin port sees it."""

    name: str
    aliases: tuple[str, ...]
    ledger_view: Callable[[], LedgerView]
    engine_statuses: Callable[[], Sequence[EngineStatus]]
    models: Callable[[], Sequence[str]]
    """Names that its engines serve."""


class Tenants(Protocol):
    """The tenants, and changing what holds for them."""

    @property
    def book(self) -> TenantBook: ...

    def standing(self) -> Sequence[Standing]:
        """The changes at run time that hold now."""
        ...

    async def change(
        self, tenant: str, pool: str | None, fields: Mapping[str, object], for_s: float, who: str
    ) -> None:
        """Raises KeyError for an unknown tenant, ConfigError for a bad change, ChangeNotKept."""
        ...

    async def end(self, tenant: str, pool: str | None, who: str) -> bool:
        """End a change early; False when there was none. Raises KeyError, ChangeNotKept."""
        ...


class PolicyFile(Protocol):
    """Which policy file is in force."""

    @property
    def path(self) -> str | None: ...

    @property
    def digest(self) -> str | None:
        """Of its content, to compare replicas by."""
        ...

    @property
    def taken_at(self) -> str: ...

    @property
    def refused(self) -> str | None:
        """Why the file on the disk is not in force; None while it is."""
        ...


@dataclass(frozen=True, slots=True)
class AdminState:
    """All functions are called on the event loop that the process serves from."""

    settings: Settings
    telemetry: Telemetry | PoolsTelemetry
    pools: Callable[[], Sequence[PoolState]]
    """In the order of the file; never empty."""
    ready: Callable[[], Ready]
    """Whether new requests can be served, and the parts of that answer. Never depends on how busy it is."""
    drain: Callable[[str, str], Awaitable[bool]]
    """No new work for this engine of a pool; False when other processes could not be told yet."""
    undrain: Callable[[str, str], Awaitable[bool]]
    tenants: Tenants
    policy_file: Callable[[], PolicyFile]
