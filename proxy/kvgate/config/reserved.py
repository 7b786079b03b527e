"""Which reservation holds for whom, in a sentence: said at start-up and by `kvgate check`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.config.crosschecks import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvgate.config.settings import Settings
    from kvgate_policies.types import TenantPolicy

NAMES_SHOWN_MAX = 10


def reservations(settings: Settings) -> str:
    """What requests reserve: of most tenants, then of those who have it otherwise. `forecast, risk 1%; guaranteed for
    batch, chat in llama-70b`. Of two that are as frequent the defaults' one comes first; where it is neither, both have
    their tenants' names.
    """
    pools = tuple(spec.name for spec in settings.pool_specs())
    whose: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    for tenant in settings.book.names:
        for kind, there in _by_kind(settings, tenant, pools).items():
            counts[kind] = counts.get(kind, 0) + len(there)
            everywhere = len(there) == len(pools)
            whose.setdefault(kind, []).append(
                tenant if everywhere else f"{tenant} in {_listed(there, ' and ')}"
            )
    usual = _in_words(settings.tenant)
    first, *rest = sorted(counts, key=lambda kind: (-counts[kind], kind != usual))
    is_rule = not rest or counts[first] > counts[rest[0]] or first == usual
    named = (f"{kind} for {_listed(whose[kind], ', ')}" for kind in whose if kind != first or not is_rule)
    return "; ".join(([first] if is_rule else []) + [*named])


def _by_kind(settings: Settings, tenant: str, pools: Sequence[str]) -> dict[str, list[str]]:
    """A reservation in words → the pools in which it holds for a tenant."""
    found: dict[str, list[str]] = {}
    for pool in pools:
        found.setdefault(_in_words(settings.book.policy(tenant, pool)), []).append(pool)
    return found


def _in_words(policy: TenantPolicy) -> str:
    return "guaranteed" if policy.reservation == "guaranteed" else f"forecast, risk {percent(policy.risk)}"


def _listed(names: Sequence[str], between: str) -> str:
    shown, more = between.join(names[:NAMES_SHOWN_MAX]), len(names) - NAMES_SHOWN_MAX
    return f"{shown} and {more:,} more" if more > 0 else shown
