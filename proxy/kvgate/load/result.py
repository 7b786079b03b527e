"""The result of `kvgate load`: one run or more, or a search for the ceiling; and as JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvgate.load.ceiling import Ceiling, Probe
    from kvgate.load.score import Objective, Score
    from kvgate.load.trial import Outcome


@dataclass(frozen=True, slots=True)
class Result:
    what: str
    """What was sent, in words."""
    objective: Objective
    outcomes: tuple[Outcome, ...] = ()
    """Side by side, in the order in which they ran."""
    ceiling: Ceiling | None = None
    interrupted: bool = False
    """Somebody said stop: what is here is part of it."""

    @property
    def completed(self) -> int:
        return sum(outcome.score.completed for outcome in self.all_outcomes)

    @property
    def all_outcomes(self) -> tuple[Outcome, ...]:
        probes = self.ceiling.probes if self.ceiling is not None else ()
        return (*self.outcomes, *(probe.outcome for probe in probes))


def result_json(result: Result) -> dict[str, object]:
    """For machines. Times are seconds, null is not known."""
    return {
        "sent": result.what,
        "interrupted": result.interrupted,
        "objective": asdict(result.objective),
        "runs": [_outcome_json(outcome) for outcome in result.outcomes],
        "ceiling": _ceiling_json(result.ceiling) if result.ceiling is not None else None,
    }


def _outcome_json(outcome: Outcome) -> dict[str, object]:
    numbers = outcome.report
    return {
        "name": outcome.name,
        "url": outcome.url,
        **_score_json(outcome.score),
        "longest_gap_p50_s": numbers.longest_gap_p50_s if numbers else None,
        "longest_gap_max_s": numbers.longest_gap_max_s if numbers else None,
        "frozen": numbers.frozen if numbers else 0,
        "retries": numbers.retries if numbers else 0,
        "makespan_s": numbers.makespan_s if numbers else 0.0,
        "client_stalled_s": numbers.client_stalled_s if numbers else 0.0,
        "left_out": outcome.left_out,
        "cut_off": outcome.cut_off,
        "preemptions": outcome.preemptions,
        "engines": {url: asdict(engine) for url, engine in numbers.engines.items()} if numbers else {},
        "tenants": {name: _score_json(score) for name, score in outcome.tenants.items()},
    }


def _score_json(score: Score) -> dict[str, object]:
    return {**asdict(score), "good_share": round(score.good_share, 4)}


def _ceiling_json(ceiling: Ceiling) -> dict[str, object]:
    return {
        "prompt_tokens": ceiling.prompt_tokens,
        "output_tokens": ceiling.output_tokens,
        "sessions": ceiling.sessions,
        "preemptions_begin_at": ceiling.preempts,
        "planned_sessions": ceiling.planned,
        "probes": [_probe_json(probe) for probe in ceiling.probes],
    }


def _probe_json(probe: Probe) -> dict[str, object]:
    return {
        "sessions": probe.sessions,
        "held": probe.held,
        "waited": probe.waited,
        "failed": probe.failed,
        **_outcome_json(probe.outcome),
    }
