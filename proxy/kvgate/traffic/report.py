"""The traffic for people, and as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvgate.traffic.lengths import Lengths
    from kvgate.traffic.summary import Cut, Traffic, Waste

WIDTH_WITHOUT_TERMINAL = 120
PERCENTS = (50, 90, 99, 100)


def print_traffic(traffic: Traffic, file: TextIO) -> None:
    width = None if file.isatty() else WIDTH_WITHOUT_TERMINAL
    console = Console(file=file, highlight=False, width=width, markup=False, emoji=False)
    span = f" in {_duration(traffic.span_s)}" if traffic.span_s else ""
    console.print(f"{traffic.requests:,} requests{span}: {traffic.source}", style="bold")
    if len(traffic.outcomes) > 1:
        console.print("  " + ", ".join(f"{name} {count:,}" for name, count in traffic.outcomes.items()))
    _lengths(console, traffic)
    _concurrency(console, traffic)
    _waste(console, traffic)
    _cuts(console, "a max_model_len of", traffic.windows, traffic.total)
    _cuts(console, "a max_tokens cap of", traffic.caps, traffic.output)
    for note in traffic.notes:
        console.print(f"\n{note}")


def _lengths(console: Console, traffic: Traffic) -> None:
    table = _table("tokens", "mean", *(f"p{percent}" for percent in PERCENTS[:-1]), "longest")
    for name, lengths in (("prompt", traffic.prompt), ("output", traffic.output), ("both", traffic.total)):
        mark = "" if lengths.exact else "≤ "
        percentiles = (_tokens(lengths.percentile(percent), mark) for percent in PERCENTS)
        table.add_row(name, f"{lengths.mean:,.0f}", *percentiles)
    console.print("\nHow long they are", style="bold")
    console.print(table)


def _concurrency(console: Console, traffic: Traffic) -> None:
    seen = traffic.concurrency
    parts = []
    if seen.mean is not None:
        parts.append(f"{seen.mean:.1f} on average")
    if seen.largest is not None:
        parts.append(f"{seen.largest:,} at most")
    if seen.waiting_mean is not None:
        parts.append(f"{seen.waiting_mean:.1f} waiting on average")
    if parts:
        console.print("\nAt once in the engines", style="bold")
        console.print("  " + ", ".join(parts))


def _waste(console: Console, traffic: Traffic) -> None:
    groups = [("all", traffic.all_waste), ("without a max_tokens of their own", traffic.with_default)]
    groups += [("with one", traffic.with_own)]
    if len(traffic.tenants) > 1:
        groups += [(f"tenant {name}", waste) for name, waste in list(traffic.tenants.items())[:10]]
    shown = [(name, waste) for name, waste in groups if waste is not None and waste.reserved_tokens]
    if not shown:
        return
    table = _table("requests", "number", "reserved tokens", "used", "never used", "by time")
    for name, waste in shown:
        over_time = f"{waste.wasted_over_time:.0%}" if waste.reserved_token_s else "–"
        reserved, used = f"{waste.reserved_tokens:,}", f"{waste.used_tokens:,}"
        table.add_row(name, f"{waste.requests:,}", reserved, used, f"{waste.wasted:.0%}", over_time)
    console.print("\nReserved in vain", style="bold")
    console.print(table)


def _cuts(console: Console, what: str, cuts: tuple[Cut, ...], lengths: Lengths) -> None:
    if not cuts:
        return
    some_refused = any(cut.refused is not None for cut in cuts)
    table = _table(what, "would cut", *(["refuse as asked"] if some_refused else []))
    for cut in cuts:
        row = [f"{cut.limit:,}", ("" if lengths.exact else "≤ ") + f"{cut.cut:.1%}"]
        if cut.refused is not None:
            row.append(f"{cut.refused:.1%}")
        table.add_row(*row)
    console.print()
    console.print(table)
    if some_refused:
        console.print(
            "  Refused as asked: the prompt and the client's own max_tokens are more than the window."
        )


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=True, padding=(0, 1))
    table.add_column(f"  {first}", overflow="fold")
    for name in others:
        table.add_column(name, justify="right")
    return table


def _tokens(length: float, mark: str) -> str:
    return "beyond" if math.isinf(length) else f"{mark}{length:,.0f}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def traffic_json(traffic: Traffic) -> dict[str, object]:
    """For machines. Lengths are tokens, shares are 0 to 1, null is not known or beyond the last bound."""
    return {
        "source": traffic.source,
        "requests": traffic.requests,
        "with_lengths": traffic.whole,
        "span_s": traffic.span_s,
        "outcomes": traffic.outcomes,
        "prompt": _lengths_json(traffic.prompt),
        "output": _lengths_json(traffic.output),
        "total": _lengths_json(traffic.total),
        "concurrency": {
            "mean": traffic.concurrency.mean,
            "largest": traffic.concurrency.largest,
            "waiting_mean": traffic.concurrency.waiting_mean,
        },
        "waste": _waste_json(traffic.all_waste),
        "waste_without_max_tokens": _waste_json(traffic.with_default),
        "waste_with_max_tokens": _waste_json(traffic.with_own),
        "tenants": {name: _waste_json(waste) for name, waste in traffic.tenants.items()},
        "max_model_len": _cuts_json(traffic.windows),
        "max_tokens": _cuts_json(traffic.caps),
        "notes": list(traffic.notes),
    }


def _lengths_json(lengths: Lengths) -> dict[str, object]:
    found = {f"p{percent}": lengths.percentile(percent) for percent in PERCENTS[:-1]}
    found["longest"] = lengths.percentile(100)
    known = {name: None if math.isinf(value) else int(value) for name, value in found.items()}
    return {"mean": round(lengths.mean, 2), **known, "exact": lengths.exact}


def _waste_json(waste: Waste | None) -> dict[str, object] | None:
    if waste is None:
        return None
    return {
        "requests": waste.requests,
        "reserved_tokens": waste.reserved_tokens,
        "used_tokens": waste.used_tokens,
        "wasted": round(waste.wasted, 4),
        "wasted_over_time": round(waste.wasted_over_time, 4) if waste.reserved_token_s else None,
    }


def _cuts_json(cuts: Iterable[Cut]) -> list[dict[str, object]]:
    return [{"limit": cut.limit, "cut": round(cut.cut, 4), "refused_as_asked": cut.refused} for cut in cuts]
