"""The answer for people: the policies side by side, and each tenant under each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.table import Table

from kvgate.replay.plan import ASSUMED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvgate.load.score import Objective
    from kvgate.replay.score import Replayed, Score
    from kvgate.replay.workload import Workload

WIDTH_WITHOUT_TERMINAL = 120
TENANTS_SHOWN_MAX = 20


def print_replayed(workload: Workload, found: Sequence[Replayed], objective: Objective, file: TextIO) -> None:
    width = None if file.isatty() else WIDTH_WITHOUT_TERMINAL
    console = Console(file=file, highlight=False, width=width, markup=False, emoji=False)
    requests = found[0].total.offered
    span = _span(found[0].span_s)
    console.print(f"{requests:,} requests in {span}: {workload.name}", style="bold")
    for text in _engines(found):
        console.print(f"  {text}")
    console.print()
    console.print(_policies(found))
    if len(found[0].tenants) > 1:
        console.print("\nEach tenant", style="bold")
        console.print(_tenants(found))
    console.print(
        f"\nGood: served, the first token within {objective.ttft_s_max:g} s of arrival, and on average "
        f"{objective.itl_s_max * 1000:g} ms from token to token. Waits are of those that were granted."
    )
    for note in (*workload.notes, *_assumed(found), *_not_replayed(found)):
        console.print(f"\n{note}")


def _engines(found: Sequence[Replayed]) -> list[str]:
    """Once where all have the same."""
    said = {one.policy: _engine(one) for one in found}
    if len(set(said.values())) == 1:
        return [next(iter(said.values()))]
    return [f"{name}: {text}" for name, text in said.items()]


def _engine(one: Replayed) -> str:
    sizes, engines = one.plan.sizes, one.plan.engines
    return (
        f"{engines} engine{'s' if engines > 1 else ''} of {sizes.num_gpu_blocks:,} blocks of {sizes.block_size} "
        f"tokens, window {sizes.max_model_len:,}, at most {sizes.max_num_seqs:,} sequences, profile "
        f"{sizes.profile.name}"
    )


def _assumed(found: Sequence[Replayed]) -> list[str]:
    names = dict.fromkeys(name for one in found for name in one.plan.assumed)
    if not names:
        return []
    said = ", ".join(f"--{name.replace('_', '-')} {ASSUMED[name]}" for name in names)
    return [f"Of the engines nobody said, and so it is assumed: {said}."]


def _not_replayed(found: Sequence[Replayed]) -> list[str]:
    return [
        f"Of {one.policy} is not replayed: {', '.join(one.plan.not_replayed)}."
        for one in found
        if one.plan.not_replayed
    ]


def _policies(found: Sequence[Replayed]) -> Table:
    table = _table("", *(one.policy for one in found))

    def row(name: str, cell: Callable[[Replayed], str]) -> None:
        table.add_row(f"  {name}", *(cell(one) for one in found))

    row("wait p50 / p90 / p99, s", lambda one: _waits(one.total))
    row("first token p50 / p99, s", lambda one: _seconds(one.total.ttft_p50_s, one.total.ttft_p99_s))
    row("served", lambda one: _part(one.total.served, one.total.offered))
    for outcome in dict.fromkeys(name for one in found for name in one.total.outcomes if name != "served"):
        row(
            outcome.replace("_", " "),
            lambda one, outcome=outcome: _part(one.total.outcomes.get(outcome, 0), one.total.offered),  # type: ignore[misc]
        )
    row("good", lambda one: _part(one.total.good, one.total.offered))
    row("goodput, tokens/s", lambda one: f"{one.total.goodput_tokens_per_s:,.1f}")
    row("all tokens/s", lambda one: f"{one.total.tokens_per_s:,.1f}")
    row("KV cache reserved, mean", lambda one: _share(one.reserved_share))
    row("KV cache held, mean", lambda one: f"{one.held_share:.1%}")
    row("waiting, mean / most", lambda one: f"{one.queued_mean:,.1f} / {one.queued_most:,}")
    row("preemptions", lambda one: f"{one.total.preemptions:,}")
    row("Jain index of those that waited", lambda one: "–" if one.jain is None else f"{one.jain:.3f}")
    return table


def _tenants(found: Sequence[Replayed]) -> Table:
    table = _table(
        "  tenant", "policy", "offered", "served", "rejected", "wait p50 / p90 / p99, s", "good", "goodput"
    )
    for name in list(found[0].tenants)[:TENANTS_SHOWN_MAX]:
        for number, one in enumerate(found):
            score = one.tenants.get(name)
            if score is not None:
                table.add_row(
                    f"  {name}" if not number else "",
                    one.policy,
                    f"{score.offered:,}",
                    f"{score.served:,}",
                    f"{score.rejected_share:.1%}",
                    _waits(score),
                    f"{score.good_share:.1%}",
                    f"{score.goodput_tokens_per_s:,.1f}",
                )
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=True, padding=(0, 1))
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="left" if name == "policy" else "right", overflow="fold")
    return table


def _waits(score: Score) -> str:
    return _seconds(score.wait_p50_s, score.wait_p90_s, score.wait_p99_s)


def _seconds(*values: float | None) -> str:
    return " / ".join("–" if value is None else f"{value:.2f}" for value in values)


def _share(part: float | None) -> str:
    return "–" if part is None else f"{part:.1%}"


def _part(count: int, whole: int) -> str:
    return f"{count:,} ({count / whole:.1%})" if whole and count else f"{count:,}"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
