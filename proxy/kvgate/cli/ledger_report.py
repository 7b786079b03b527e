"""A shared ledger as tables for people and as JSON. Pure but for the printing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.table import Table

from kvgate.admin.views import ledger_json
from kvgate.cli.findings import WIDTH_WITHOUT_TERMINAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvgate.ledger.scripts import Inspection, Sums
    from kvgate_policies.types import EngineUse, LedgerView


NOT_OF_THE_LEDGER = frozenset({"mode", "processes"})
"""Keys that tell how one process sees it."""


@dataclass(frozen=True, slots=True)
class Report:
    """What is in the ledger of a pool now; the two parts are read one after the other."""

    pool: str
    view: LedgerView
    inside: Inspection


def report_json(report: Report) -> dict[str, object]:
    inside = report.inside
    return {
        "epoch": inside.epoch,
        **{
            key: value
            for key, value in ledger_json(report.pool, report.view).items()
            if key not in NOT_OF_THE_LEDGER
        },
        "parked": inside.parked,
        "processes": [
            {
                "process": pid,
                "lease_left_s": left_ms / 1000,
                "holds": [
                    {
                        "engine_id": one.engine_id,
                        "tenant": one.tenant,
                        **_sums_json(one.sums),
                        "unseen_grants": one.unseen,
                    }
                    for one in inside.holdings
                    if one.pid == pid
                ],
            }
            for pid, left_ms in inside.leases_ms.items()
        ],
        "orphans": [
            {
                "process": one.pid,
                "engine_id": one.engine_id,
                "tenant": one.tenant,
                **_sums_json(one.sums),
                "age_s": one.age_ms / 1000,
            }
            for one in inside.orphans
        ],
        "head": [
            {
                "request": one.request_id,
                "tenant": one.tenant,
                "class": one.priority.value,
                "process": one.pid,
                "seq": one.seq,
                "wait_s": one.wait_ms / 1000,
                "bypasses": one.bypasses,
            }
            for one in inside.head
        ],
    }


HELD = ("reserved", "peak", "seqs", "prefill tokens", "requests")
"""Of sums: blocks as expected where most are, and at the peaks."""


def _sums_json(sums: Sums) -> dict[str, int]:
    return {
        "reserved_blocks": sums.cost.use_blocks,
        "peak_blocks": sums.cost.blocks,
        "seqs": sums.cost.seqs,
        "prefill_tokens": sums.cost.prefill_tokens,
        "reservations": sums.reservations,
    }


def print_report(report: Report, file: TextIO) -> None:
    """Engines with their totals, who holds what, whose sums are orphaned, and who is first in the queue."""
    console = Console(
        file=file, highlight=False, soft_wrap=True, width=None if file.isatty() else WIDTH_WITHOUT_TERMINAL
    )
    inside, view = report.inside, report.view
    console.print(f"pool {report.pool}, epoch {inside.epoch}\n", markup=False)
    console.print(_engines(view.engines))
    console.print()
    console.print(_processes(report))
    if inside.orphans:
        console.print("\nof processes that are gone, until the engine shows it free:", markup=False)
        console.print(_orphans(report))
    console.print(f"\n{view.queued:,} in the queue, {inside.parked:,} of them parked", markup=False)
    if inside.head:
        console.print(_head(report))
    totals: Mapping[str, int] = view.totals
    console.print("\n" + ", ".join(f"{name} {count:,}" for name, count in totals.items()), markup=False)


def _table(left: Iterable[str], right: Iterable[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right")
    return table


def _engines(engines: Iterable[EngineUse]) -> Table:
    table = _table(
        ["engine"],
        ["reserved", "of", "peak", "seqs", "of", "prefill tokens", "of", "requests", "accepting"],
    )
    table.add_column("kept for")
    for use in engines:
        limits, held = use.limits, use.reserved
        pairs = (
            held.use_blocks,
            limits.blocks_open,
            held.blocks,
            held.seqs,
            limits.seqs,
            held.prefill_tokens,
            limits.prefill_tokens,
        )
        numbers = [f"{number:,}" for number in (*pairs, use.reservations)]
        table.add_row(limits.engine_id, *numbers, "yes" if limits.accepting else "no", use.pinned_by or "")
    return table


def _processes(report: Report) -> Table:
    table = _table(["process", "lease", "engine", "tenant"], HELD)
    for pid, left_ms in report.inside.leases_ms.items():
        lease = f"{left_ms / 1000:.1f} s" if left_ms > 0 else "ran out"
        held = [one for one in report.inside.holdings if one.pid == pid]
        for one in held:
            table.add_row(pid, lease, one.engine_id, one.tenant, *_numbers(one.sums))
        if not held:
            table.add_row(pid, lease, "")
    return table


def _orphans(report: Report) -> Table:
    table = _table(["process", "engine", "tenant"], [*HELD, "for"])
    for one in report.inside.orphans:
        table.add_row(one.pid, one.engine_id, one.tenant, *_numbers(one.sums), f"{one.age_ms / 1000:.1f} s")
    return table


def _head(report: Report) -> Table:
    table = _table(["request", "tenant", "class", "process"], ["place", "waits", "passed"])
    for one in report.inside.head:
        table.add_row(
            *(one.request_id, one.tenant, one.priority.value, one.pid),
            *(f"{one.seq:,}", f"{one.wait_ms / 1000:.1f} s", str(one.bypasses)),
        )
    return table


def _numbers(sums: Sums) -> tuple[str, ...]:
    """In the order of `HELD`."""
    cost = sums.cost
    parts = cost.use_blocks, cost.blocks, cost.seqs, cost.prefill_tokens, sums.reservations
    return tuple(f"{number:,}" for number in parts)
