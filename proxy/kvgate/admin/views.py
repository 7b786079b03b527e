"""Pools, ledger, engines and settings as plain JSON values. Pure; the names are the same as in code and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from kvgate.admin.models import FileView, IdentityView, PoolView
from kvgate.config import PoolSpec
from kvgate.config.layers import OF_POOLS
from kvgate.config.redaction import redacted

if TYPE_CHECKING:
    from kvgate.admin.state import PolicyFile, PoolState
    from kvgate.config import Settings
    from kvgate.config.identity import IdentityRules
    from kvgate.config.tenants import TenantBook
    from kvgate.telemetry.scrape import EngineStatus
    from kvgate_policies.types import EngineUse, LedgerView

HIDDEN = "(set)"
"""In place of a secret."""
SECRETS = frozenset({"backend_api_key", "admin_token"})
DETAILS = (
    *("why", "probe_age_s", "last_error", "sources", "warnings", "models"),
    *("gauges_age_s", "elected", "trust", "bias", "foreign_blocks", "drift_blocks", "blocks_usable"),
    *("stalled", "stalls"),
)
"""Of an engine's status, shown where the pool tells them."""


def ledger_json(pool: str, view: LedgerView) -> dict[str, object]:
    return {
        "pool": pool,
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
        "reserved_blocks": use.reserved.use_blocks,
        "peak_blocks": use.reserved.blocks,
        "reserved_seqs": use.reserved.seqs,
        "reserved_prefill_tokens": use.reserved.prefill_tokens,
        "reservations": use.reservations,
        "accepting": use.limits.accepting,
        "pinned_by": use.pinned_by,
        "share_blocks": None if use.share is None else use.share.blocks,
    }


def pool_view(pool: PoolState, view: LedgerView) -> PoolView:
    return PoolView(
        name=pool.name,
        aliases=list(pool.aliases),
        models=list(pool.models()),
        ledger_mode=view.mode,
        processes=view.processes,
        engines=len(pool.engine_statuses()),
        engines_accepting=sum(use.limits.accepting for use in view.engines),
        blocks=sum(use.limits.blocks for use in view.engines),
        reserved_blocks=sum(use.reserved.use_blocks for use in view.engines),
        peak_blocks=sum(use.reserved.blocks for use in view.engines),
        reservations=sum(use.reservations for use in view.engines),
        queued=view.queued,
        oldest_wait_s=view.oldest_wait_s,
    )


def pool_json(pool: PoolState, settings: Settings, book: TenantBook) -> dict[str, object]:
    """What holds for a pool; aliases, backends and what it says of its tenants as they are by now. `risk` is None where
    it has no effect, since all of them reserve peaks.
    """
    specs = {spec.name: spec.model_dump(mode="json") for spec in settings.pool_specs()}
    spec = specs.get(pool.name, {"name": pool.name})
    urls = dict.fromkeys(status.url for status in pool.engine_statuses())
    said = book.pools.get(pool.name, {})
    live = {
        name: said[name].value if name in said else PoolSpec.model_fields[name].default for name in OF_POOLS
    }
    if not book.forecasts(pool.name):
        live["risk"] = None
    return _hidden(spec) | {"aliases": list(pool.aliases), "backends": list(urls), **live}


def engines_json(pool: PoolState) -> list[dict[str, object]]:
    """Every engine of a pool, what the ledger reserved on it among the rest."""
    uses = {use.limits.engine_id: use for use in pool.ledger_view().engines}
    return [_engine_json(pool.name, status, uses.get(status.id)) for status in pool.engine_statuses()]


def _engine_json(pool: str, status: EngineStatus, use: EngineUse | None) -> dict[str, object]:
    details = {name: getattr(status, name) for name in DETAILS if hasattr(status, name)}
    return {
        "engine_id": status.id,
        "pool": pool,
        "url": status.url,
        "state": str(status.state),
        "limits": _plain(status.limits),
        "reserved_blocks": 0 if use is None else use.reserved.use_blocks,
        "peak_blocks": 0 if use is None else use.reserved.blocks,
        "share_blocks": None if use is None or use.share is None else use.share.blocks,
        "reservations": 0 if use is None else use.reservations,
        "gauges": _plain(status.gauges),
        **{name: _plain(value) for name, value in details.items()},
    }


def settings_json(settings: Settings) -> dict[str, object]:
    """The effective settings as the process began with them; of a secret only whether it is set."""
    values: dict[str, object] = settings.model_dump(mode="json")
    pools = [_hidden(spec.model_dump(mode="json")) for spec in settings.pools]
    return _hidden(values) | {"ledger_url": redacted(settings.ledger_url), "pools": pools}


def _hidden(values: dict[str, object]) -> dict[str, object]:
    hidden = {name: HIDDEN if values[name] is not None else None for name in SECRETS & values.keys()}
    return values | hidden


def file_view(file: PolicyFile) -> FileView:
    return FileView(path=file.path, digest=file.digest, taken_at=file.taken_at, refused=file.refused)


def identity_view(rules: IdentityRules) -> IdentityView:
    return IdentityView(
        source=rules.source,
        header=rules.header or None,
        jwt_claim=rules.jwt_claim or None,
        unknown=rules.unknown,
    )


def _plain(value: Any) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return dict(value) if isinstance(value, Mapping) else value
