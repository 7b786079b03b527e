"""What the ledger knows of each tenant, as rows of the metrics page.

A page has room for so many tenants with names of their own; what the others have comes to one row, `other`:
added up where that means something, the longest of their waits, and nothing for a weight or a bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.telemetry import catalogue
from kvgate.telemetry.labels import OTHER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kvgate.telemetry.catalogue import Metric
    from kvgate_policies.types import TenantUse

Row = tuple[tuple[str, ...], float]
"""Values of the labels, `pool` aside, and the number."""

_VALUES: tuple[
    tuple[Metric, Callable[[TenantUse], float], Callable[[Iterable[float]], float] | None], ...
] = (
    (catalogue.TENANT_QUEUE_DEPTH, lambda use: use.queued, sum),
    (catalogue.TENANT_OLDEST, lambda use: use.oldest_wait_s, max),
    (catalogue.TENANT_BLOCKS, lambda use: use.blocks, sum),
    (catalogue.TENANT_SERVICE, lambda use: use.service, sum),
    (catalogue.TENANT_GUARANTEE, lambda use: use.blocks_guaranteed, None),
    (catalogue.TENANT_LIMIT, lambda use: use.blocks_limit, None),
    (catalogue.TENANT_WEIGHT, lambda use: use.rules.weight, None),
)
"""Each metric, its value, and what the values of several tenants come to; None where that says nothing."""


def tenant_rows(
    tenants: Sequence[TenantUse], label: Callable[[str], str]
) -> Iterator[tuple[Metric, list[Row]]]:
    """The rows of all tenants in a view; `label` gives the name or, beyond the cap, `other`."""
    named: list[tuple[str, TenantUse]] = []
    others: list[TenantUse] = []
    for use in tenants:
        name = label(use.name)
        if name == OTHER:
            others.append(use)
        else:
            named.append((name, use))
    for metric, value, together in _VALUES:
        rows: list[Row] = [((name,), float(value(use))) for name, use in named]
        if others and together is not None:
            rows.append(((OTHER,), float(together(value(use) for use in others))))
        yield metric, rows
