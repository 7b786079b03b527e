"""The result on a terminal: runs side by side, tenants, the ceiling."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvgate.load.ceiling import Ceiling
    from kvgate.load.result import Result
    from kvgate.load.trial import Outcome

WIDTH_WITHOUT_TERMINAL = 140
ERRORS_MAX = 8
"""Reasons in the table; the JSON has them all."""


def print_result(result: Result, file: TextIO) -> None:
    width = None if file.isatty() else WIDTH_WITHOUT_TERMINAL
    console = Console(file=file, highlight=False, width=width, markup=False, emoji=False)
    if result.interrupted:
        console.print("Stopped early: this is what was seen until then.\n", style="bold")
    console.print(result.what + "\n")
    if result.outcomes:
        console.print(_side_by_side(result))
        for outcome in result.outcomes:
            _tenants(console, outcome)
        for note in _notes(result):
            console.print(f"\n{note}")
    if result.ceiling is not None:
        _ceiling(console, result.ceiling)


def seconds(value: float | None) -> str:
    """`1.24 s`, `31.5 ms`: for people."""
    if value is None:
        return "–"
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


Row = tuple[str, "Callable[[Outcome], str]"]


def rows(result: Result) -> list[Row]:
    """The lines of the comparison, with how each is read of a run."""
    slo = result.objective
    promised = f"within {seconds(slo.ttft_s_max)}, then {seconds(slo.itl_s_max)} a token"
    fixed: list[Row] = [
        ("completed", lambda o: f"{o.score.completed:,} of {o.score.offered:,}"),
        (f"good ({promised})", lambda o: f"{o.score.good:,} ({o.score.good_share:.0%})"),
        ("goodput, requests a second", lambda o: f"{o.score.goodput_per_s:.2f}"),
        ("output tokens a second", lambda o: f"{o.score.tokens_per_s:,.0f}"),
        ("to first token, p50", lambda o: seconds(o.score.ttft_p50_s)),
        ("to first token, p99", lambda o: seconds(o.score.ttft_p99_s)),
        ("between tokens, p50", lambda o: seconds(o.score.itl_p50_s)),
        ("between tokens, p99", lambda o: seconds(o.score.itl_p99_s)),
        (
            "longest gap of a stream, median",
            lambda o: seconds(o.report.longest_gap_p50_s if o.report else None),
        ),
        ("longest gap of all", lambda o: seconds(o.report.longest_gap_max_s if o.report else None)),
        ("streams that froze", lambda o: f"{o.report.frozen if o.report else 0:,}"),
        ("preemptions", lambda o: "–" if o.preemptions is None else f"{o.preemptions:,}"),
        ("most running in an engine", _running_max),
        ("KV cache in use, mean", _kv_use),
    ]
    return [*fixed, *_error_rows(result)]


def _running_max(outcome: Outcome) -> str:
    engines = outcome.report.engines.values() if outcome.report else ()
    return ", ".join(f"{engine.running_max:,}" for engine in engines) or "–"


def _kv_use(outcome: Outcome) -> str:
    engines = outcome.report.engines.values() if outcome.report else ()
    known = [engine.kv_use_mean for engine in engines if engine.kv_use_mean is not None]
    return ", ".join(f"{use:.0%}" for use in known) or "–"


def _error_rows(result: Result) -> Iterator[Row]:
    reasons = dict.fromkeys(reason for outcome in result.outcomes for reason in outcome.score.errors)
    for reason in list(reasons)[:ERRORS_MAX]:
        yield f"error: {reason}", lambda o, of=reason: f"{o.score.errors.get(of, 0):,}"  # type: ignore[misc]


def _side_by_side(result: Result) -> Table:
    table = _table("", *(outcome.name for outcome in result.outcomes))
    for name, read in rows(result):
        table.add_row(name, *(read(outcome) for outcome in result.outcomes))
    return table


def _tenants(console: Console, outcome: Outcome) -> None:
    if not outcome.tenants:
        return
    table = _table(
        f"{outcome.name}: tenant",
        "completed",
        "good",
        "to first token, p50",
        "p99",
        "between tokens, p99",
        "tokens/s",
    )
    for cells in tenant_rows(outcome):
        table.add_row(*cells)
    console.print()
    console.print(table)
    for name, score in outcome.tenants.items():
        if score.errors:
            errors = ", ".join(f"{reason} {count:,}" for reason, count in score.errors.items())
            console.print(f"  {name}, errors: {errors}")


def tenant_rows(outcome: Outcome) -> Iterator[list[str]]:
    """A line for each tenant: its name, completed, good, the times, and its pace."""
    for name, score in outcome.tenants.items():
        yield [
            name,
            f"{score.completed:,} of {score.offered:,}",
            f"{score.good_share:.0%}",
            seconds(score.ttft_p50_s),
            seconds(score.ttft_p99_s),
            seconds(score.itl_p99_s),
            f"{score.tokens_per_s:,.0f}",
        ]


def _notes(result: Result) -> Iterator[str]:
    for outcome in result.outcomes:
        if outcome.left_out:
            yield (
                f"{outcome.name}: {outcome.left_out:,} requests were not sent, because --in-flight-max were in flight "
                "already: the server does not keep up with this rate."
            )
        if outcome.cut_off and not outcome.interrupted:
            yield f"{outcome.name}: {outcome.cut_off:,} streams still ran when the time was over, and were broken off."
        if outcome.report is not None and outcome.report.client_stalled_s > 0.5:
            yield (
                f"{outcome.name}: this client itself stood still for {outcome.report.client_stalled_s:.1f} s; the "
                "gaps do not count that."
            )
        if outcome.watched and outcome.preemptions is None:
            yield f"{outcome.name}: no engine told its metrics, so nothing is known about preemptions."


def _ceiling(console: Console, ceiling: Ceiling) -> None:
    console.print(headline(ceiling), style="bold")
    console.print()
    table = _table(
        "sessions at once", "held", "preemptions", "waited", "failed",
        "to first token, p99", "between tokens, p50", "p99", "longest gap",
    )  # fmt: skip
    for probe in ceiling.probes:
        outcome = probe.outcome
        table.add_row(
            f"{probe.sessions:,}",
            "yes" if probe.held else "no",
            "–" if outcome.preemptions is None else f"{outcome.preemptions:,}",
            f"{probe.waited:,}",
            f"{probe.failed:,}",
            seconds(outcome.score.ttft_p99_s),
            seconds(outcome.score.itl_p50_s),
            seconds(outcome.score.itl_p99_s),
            seconds(outcome.report.longest_gap_max_s if outcome.report else None),
        )
    console.print(table)


def headline(ceiling: Ceiling) -> str:
    """What was found, in a sentence or two."""
    size = f"sessions of {ceiling.prompt_tokens:,} + {ceiling.output_tokens:,} tokens"
    if ceiling.sessions is not None:
        found = f"{ceiling.sessions:,} {size} are held at once."
    elif ceiling.first_over == 1:
        found = f"Not even one of these {size} went well by itself."
    else:
        most = max((probe.sessions for probe in ceiling.probes if probe.held), default=0)
        found = f"No ceiling found: {most:,} {size} are held at once, and more were not tried."
    if ceiling.preempts is not None:
        found += f" With {ceiling.preempts:,} preemptions begin."
    elif ceiling.sessions is not None:
        found += " With more, some wait; nothing is preempted."
    if ceiling.planned is not None:
        found += f" By the blocks of the engines it should be {ceiling.planned:,}."
    return found


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right")
    return table
