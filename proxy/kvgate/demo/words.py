"""The closing table and what it means, as plain data: no claim is made that the numbers do not show. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvgate.demo.plan import DemoPlan
    from kvgate.demo.verdict import Result
    from kvgate.load import Report

_EQUAL_WITHIN = 0.1
"""Differences below a tenth are called about the same: so much is noise on a shared machine."""


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    direct: str
    kvgate: str


def better_rows(result: Result) -> list[Row]:
    """What admission control is for."""
    direct, kvgate = result.direct, result.kvgate
    return [
        _row("preemptions", direct.preemptions, kvgate.preemptions),
        _row("streams that froze", _of(direct.frozen, direct.offered), _of(kvgate.frozen, kvgate.offered)),
        _row("longest gap, worst", seconds(direct.longest_gap_max_s), seconds(kvgate.longest_gap_max_s)),
        _row("longest gap, median", seconds(direct.longest_gap_p50_s), seconds(kvgate.longest_gap_p50_s)),
        _row("between tokens, p99", seconds(direct.itl_p99_s), seconds(kvgate.itl_p99_s)),
        _row("tokens computed twice", _count(direct.recomputed_tokens), _count(kvgate.recomputed_tokens)),
        _row("most running at once", _running(direct), _running(kvgate)),
    ]


def same_rows(result: Result) -> list[Row]:
    """What it leaves as it is, or may cost."""
    direct, kvgate = result.direct, result.kvgate
    return [
        _row("completed", _of(direct.completed, direct.offered), _of(kvgate.completed, kvgate.offered)),
        _row("total time", seconds(direct.makespan_s), seconds(kvgate.makespan_s)),
        _row("between tokens, p50", seconds(direct.itl_p50_s), seconds(kvgate.itl_p50_s)),
        _row("to first token, p50", seconds(direct.ttft_p50_s), seconds(kvgate.ttft_p50_s)),
        _row("to first token, p99", seconds(direct.ttft_p99_s), seconds(kvgate.ttft_p99_s)),
        _row("KV cache in use, mean", _use(direct), _use(kvgate)),
    ]


def offer_text(plan: DemoPlan) -> str:
    """What is about to happen."""
    return (
        f"{plan.engines} simulated engines, each with room for exactly {plan.fits_per_engine} sessions of "
        f"{plan.prompt_tokens} + {plan.output_tokens} tokens. {plan.offered} sessions are sent at once, "
        f"{plan.overload} times of what fits: first directly, then through kvgate."
    )


def meaning(result: Result) -> list[str]:
    """What the numbers mean, one paragraph each."""
    direct, kvgate = result.direct, result.kvgate
    texts = [_direct_text(result), _kvgate_text(result), _unchanged_text(direct, kvgate)]
    stalled_s = direct.client_stalled_s + kvgate.client_stalled_s
    return [*texts, _stalled_text(stalled_s)] if stalled_s else texts


def _stalled_text(stalled_s: float) -> str:
    return (
        f"This machine was too busy to run the demo itself for {seconds(stalled_s)} in all. That time is taken out "
        f"of the gaps between tokens, and of nothing else."
    )


def _direct_text(result: Result) -> str:
    direct = result.direct
    if not direct.frozen:
        return "Direct: no stream froze this time, so there was nothing to prevent."
    return (
        "Direct: the engines took more sessions than their KV cache can hold to the end, and threw out "
        f"the youngest when it was full. {direct.frozen} of {direct.offered} streams stopped in the middle "
        f"of their answer, for up to {seconds(direct.longest_gap_max_s)}, and "
        f"{_count(direct.recomputed_tokens)} tokens were computed a second time.{_hidden_text(direct)}"
    )


def _hidden_text(direct: Report) -> str:
    """Whether the usual measure shows the freezes."""
    p99_s, freeze_s = direct.itl_p99_s, direct.freeze_gap_s
    if p99_s is None or freeze_s is None or p99_s > freeze_s:
        return ""
    return (
        f" The p99 between tokens, {seconds(p99_s)}, hides it: fewer than one gap in a hundred is a freeze."
    )


def _kvgate_text(result: Result) -> str:
    kvgate, fits = result.kvgate, result.plan.fits_per_engine
    if not result.ok:
        failed = "; ".join(f"{claim.text} ({claim.seen})" for claim in result.claims if not claim.holds)
        return f"Not as claimed in this run: {failed}."
    return (
        f"Through kvgate: a session starts only when what it will hold to its end is reserved, {fits} at a time on "
        f"each engine, or a few more while some are about to end. The others queue before their first token. None of "
        f"{kvgate.offered} froze. (These sessions say how long they get. Where nobody does, it is forecast, and room "
        f"is left for chance.)"
    )


def _unchanged_text(direct: Report, kvgate: Report) -> str:
    total = compared(direct.makespan_s, kvgate.makespan_s)
    first = compared(direct.ttft_p50_s, kvgate.ttft_p50_s)
    return (
        f"What it does not do: make the engines faster. Total time: {total}. Median wait for the first "
        f"token: {first}. The work is the same, and direct requests wait too, inside the engines. "
        f"The engines here are simulated: the scheduler and the KV cache of vLLM, without a GPU."
    )


def compared(direct_s: float | None, kvgate_s: float | None) -> str:
    """How the second relates to the first, in words."""
    if not direct_s or kvgate_s is None:
        return "unknown"
    change = kvgate_s / direct_s - 1
    if abs(change) < _EQUAL_WITHIN:
        return "about the same"
    return f"{abs(change):.0%} {'longer' if change > 0 else 'shorter'} through kvgate"


def seconds(value_s: float | None) -> str:
    """A time for people: milliseconds below a second."""
    if value_s is None:
        return "–"
    return f"{value_s * 1000:.0f} ms" if value_s < 1 else f"{value_s:.1f} s"


def _row(name: str, direct: int | str, kvgate: int | str) -> Row:
    return Row(name, str(direct), str(kvgate))


def _of(part: int, whole: int) -> str:
    return f"{part} of {whole}"


def _count(tokens: int | None) -> str:
    return "–" if tokens is None else f"{tokens:,}"


def _running(report: Report) -> str:
    return ", ".join(str(engine.running_max) for engine in report.engines.values()) or "–"


def _use(report: Report) -> str:
    means = [engine.kv_use_mean for engine in report.engines.values() if engine.kv_use_mean is not None]
    return f"{sum(means) / len(means):.0%}" if means else "–"
