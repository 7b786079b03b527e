"""What holds for a tenant in a pool, in the words of the policy file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvgate.config.tenants import TenantBook

KEYS: Mapping[str, str] = {
    "mode": "mode",
    "weight": "weight",
    "priority": "class",
    "guarantee": "guarantee",
    "limit": "limit",
    "borrow": "borrow",
    "queue_depth_max": "queue.depth",
    "queue_wait_s_max": "queue.wait",
    "order": "queue.order",
    "max_tokens_default": "max_tokens.default",
    "max_tokens_cap": "max_tokens.cap",
    "rewrite_max_tokens": "max_tokens.rewrite",
    "tokens_per_minute": "rate.tokens_per_minute",
    "requests_per_minute": "rate.requests_per_minute",
    "reservation": "reservation",
    "risk": "risk",
    "revocable": "revocable",
    "overload_status": "on_overload",
}
"""Field → its key in the file, in the order in which they are shown."""
FIELDS = (*KEYS, "limit_tokens")


@dataclass(frozen=True, slots=True)
class Row:
    field: str
    """In `TenantPolicy` or `TenantRules`."""
    value: object
    shown: str
    """As the file has it."""
    origin: str


def rows_of(book: TenantBook, tenant: str, pool: str) -> list[Row]:
    """Every value that holds, with the place it was written in."""
    from kvgate.config.shown import shown  # noqa: PLC0415  pydantic takes 100 ms

    policy, origins = book.policy(tenant, pool), book.origins(tenant, pool)
    found: list[Row] = []
    for name in FIELDS:
        value = getattr(policy if hasattr(policy, name) else policy.rules, name)
        found.append(Row(name, value, shown(name, value), origins[name]))
    return found


def table(rows: Iterable[Row], file: str) -> str:
    """A line for each key of the file; what was written in `file` is placed by its path in it alone."""
    by_field = {row.field: row for row in rows}
    tokens = by_field.pop("limit_tokens")
    if tokens.value is not None:
        by_field["limit"] = replace(by_field["limit"], shown=f"{tokens.shown} tokens")
    wide = max(len(row.shown) for row in by_field.values())
    return "\n".join(
        f"  {KEYS[row.field]:<24}  {row.shown:<{wide}}  {row.origin.removeprefix(f'{file}: ')}"
        for row in by_field.values()
    )
