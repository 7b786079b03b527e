"""The engines of a pool: which job is on which of them, and what they do, as happenings on the agenda."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.replay.engine import LeapingEngine
from kvgate.replay.engine_base import NEVER_S, Engine, Seen, Sequence
from kvgate.replay.exact import SteppingEngine
from kvgate.replay.job import Job
from kvgate_policies.types import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvgate.replay.agenda import Agenda
    from kvgate.replay.plan import Plan

LIMIT_UNSET = 16
"""Output tokens of a completion whose client set no limit, by the engine's own default."""


class Pool:
    """All engines of a plan, which drive themselves."""

    def __init__(
        self,
        plan: Plan,
        agenda: Agenda,
        *,
        began: Callable[[Job], None],
        finished: Callable[[Job], None],
        exact: bool,
    ) -> None:
        """`began` is told of a job's first token, `finished` when its last sequence has ended."""
        self._running: dict[str, dict[str, Job]] = {limits.engine_id: {} for limits in plan.limits()}
        self._ended_tokens = dict.fromkeys(self._running, 0)
        """Output tokens of those that ran and run no more."""
        make = SteppingEngine if exact else LeapingEngine
        self._engines: dict[str, Engine] = {limits.engine_id: make(plan.sizes) for limits in plan.limits()}
        self._due_s = dict.fromkeys(self._engines, NEVER_S)
        """For which something is on the agenda."""
        self._window = plan.sizes.max_model_len
        self._agenda = agenda
        self._began, self._finished = began, finished

    def start(self, job: Job) -> None:
        """Its sequences join their engine, which begins with them after the step that is in progress."""
        offered, target = job.offered, self.target(job)
        job.unfinished = offered.prompts * offered.n
        job.sequences = [Sequence(job, offered.prompt_tokens, target) for _ in range(job.unfinished)]
        self._running[job.engine][job.request_id] = job
        for sequence in job.sequences:
            self._engines[job.engine].add(sequence, self._agenda.now_s)
        self._expect(job.engine)

    def abort(self, job: Job) -> None:
        """Drop what of it has not ended, when the step that is in progress is over."""
        self._count_out(job)
        for sequence in job.sequences:
            self._engines[job.engine].abort(sequence, self._agenda.now_s)
        self._expect(job.engine)

    def target(self, job: Job) -> int:
        """Tokens after which each sequence ends: by itself, or by the limit that its body has now."""
        offered = job.offered
        if offered.endpoint is Endpoint.POOLING:
            return 1
        window = max(self._window - offered.prompt_tokens, 1)
        if job.call.enforced:
            limit = job.priced.budget.max_tokens
        elif offered.max_tokens is None and offered.endpoint is Endpoint.COMPLETIONS:
            limit = LIMIT_UNSET
        else:
            limit = window if offered.max_tokens is None else offered.max_tokens
        return max(min(offered.output_tokens, limit, window), 1)

    # What is seen of them

    def generated(self, job: Job) -> int:
        """Tokens of all its sequences by now."""
        engine, now_s = self._engines[job.engine], self._agenda.now_s
        return sum(engine.generated(sequence, now_s) for sequence in job.sequences)

    def seen(self) -> dict[str, Seen]:
        """What each would export now."""
        return {name: engine.seen(self._agenda.now_s) for name, engine in self._engines.items()}

    def generated_tokens(self, engine_id: str) -> int:
        """Output tokens of an engine by now, of all that ran there: what it would export."""
        return self._ended_tokens[engine_id] + sum(map(self.generated, self._running[engine_id].values()))

    def held_block_s(self) -> float:
        """Blocks held by sequences, times seconds, until now."""
        return sum(engine.held_block_s(self._agenda.now_s) for engine in self._engines.values())

    # What they do

    def _expect(self, engine_id: str) -> None:
        """Have the end of its present steps on the agenda."""
        due_s = self._engines[engine_id].due_s
        if due_s != self._due_s[engine_id]:
            self._due_s[engine_id] = due_s
            if due_s != NEVER_S:
                self._agenda.at(due_s, self._settle, engine_id, due_s)

    def _settle(self, engine_id: str, due_s: float) -> None:
        engine = self._engines[engine_id]
        if engine.due_s != due_s:
            return  # it was told of something meanwhile: another entry is for it
        settled = engine.settle()
        self._expect(engine_id)
        for sequence in settled.started:
            job = _job_of(sequence)
            if job.first_token_s is None:
                job.first_token_s = due_s
                self._began(job)
        for sequence in settled.finished:
            job = _job_of(sequence)
            job.unfinished -= 1
            if not job.unfinished:
                self._count_out(job)
                self._finished(job)

    def _count_out(self, job: Job) -> None:
        """It runs no more; nothing if it was counted out before."""
        if self._running[job.engine].pop(job.request_id, None) is not None:
            self._ended_tokens[job.engine] += self.generated(job)


def _job_of(sequence: Sequence) -> Job:
    if not isinstance(sequence.key, Job):
        raise TypeError("a sequence of somebody else")
    return sequence.key
