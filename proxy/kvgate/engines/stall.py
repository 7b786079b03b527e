"""Has an engine stopped making tokens? Pure: what was seen of it, and for how long it was nothing.

An engine core that hangs leaves its API server answering: `/health` says 200, requests are taken, and nothing comes.
Signs of life are any change of its own numbers (vLLM writes them with each step, and during a long prefill its KV
usage grows) and any byte of an answer that passed here (its numbers may be old or gone). An engine that has
something to do and shows neither for `stall_after_s` is suspected. What follows is a question, not a verdict: one
token is asked of it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quiet:
    """How long an engine has been quiet although it has something to do."""

    since_s: float | None = None
    """When it last moved, had nothing to do, or proved that it lives; None before the first look."""

    def suspects(self, now_s: float, stall_after_s: float) -> bool:
        return self.since_s is not None and now_s - self.since_s >= stall_after_s


def quiet_step(quiet: Quiet, *, moved: bool, at_work: bool, now_s: float) -> Quiet:
    """After a look at it. `at_work`: it runs something by its own gauge, or the ledger holds something there."""
    return Quiet(now_s) if moved or not at_work or quiet.since_s is None else quiet
