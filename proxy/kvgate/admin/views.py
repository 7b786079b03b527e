"""Ledger, engines and settings as plain JSON values. Pure; the names are the same as in code and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from kvgate.config.redaction import redacted

if TYPE_CHECKING:
    from kvgate.config import Settings
    from kvgate.telemetry.scrape import EngineStatus
    from kvgate_policies.types import EngineUse, LedgerView

HIDDEN = "(set)"
"""In place of a secret."""
SECRETS = frozenset({"backend_api_key", "admin_token"})
DETAILS = ("why", "probe_age_s", "last_error", "sources", "warnings", "models")
"""Of an engine's status, shown where the pool tells them."""


def ledger_json(view: LedgerView) -> dict[str, object]:
    return {
        "mode": view.mode,
        "processes": view.processes,
        "queued": view.queued,
        "oldest_wait_s": view.oldest_wait_s,
        "engines": [_use_json(use) for use in view.engines],
        "totals": dict(view.totals),
    }


def _use_json(use: EngineUse) -> dict[str, object]:
    return {
        "engine_id": use.limits.engine_id,
        "blocks": use.limits.blocks,
        "seqs": use.limits.seqs,
        "prefill_tokens": use.limits.prefill_tokens,
        "reserved_blocks": use.reserved.blocks,
        "reserved_seqs": use.reserved.seqs,
        "reserved_prefill_tokens": use.reserved.prefill_tokens,
        "reservations": use.reservations,
        "accepting": use.limits.accepting,
        "pinned_by": use.pinned_by,
    }


def engine_json(status: EngineStatus) -> dict[str, object]:
    details = {name: getattr(status, name) for name in DETAILS if hasattr(status, name)}
    return {
        "engine_id": status.id,
        "url": status.url,
        "state": str(status.state),
        "limits": _plain(status.limits),
        "gauges": _plain(status.gauges),
        **{name: _plain(value) for name, value in details.items()},
    }


def settings_json(settings: Settings) -> dict[str, object]:
    """The effective settings; of a secret only whether it is set."""
    values: dict[str, object] = settings.model_dump(mode="json")
    hidden = {name: HIDDEN if values[name] is not None else None for name in SECRETS}
    return values | hidden | {"ledger_url": redacted(settings.ledger_url)}


def _plain(value: Any) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return dict(value) if isinstance(value, Mapping) else value
