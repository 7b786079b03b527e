"""The simulation: engines that step, jobs that arrive, a queue, a gate, and a clock that jumps.

Everything that happens is an event in a heap; equal times keep their order, so that a run is the same each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count

from bench.admission.engine import Engine, Sequence, Step
from bench.admission.gates import Gate
from bench.admission.queues import BYPASS_MAX, Fair, Fifo
from bench.admission.workload import BLOCK_SIZE, Job, Profile

BEAT_S = 0.25
Queue = Fifo | Fair


def make_engines(profile: Profile) -> list[Engine]:
    return [
        Engine(
            blocks=profile.blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=profile.max_num_seqs,
            max_num_batched_tokens=profile.max_num_batched_tokens,
            profile=profile.step,
        )
        for _ in range(profile.engines)
    ]


class World:
    def __init__(
        self,
        profile: Profile,
        engines: list[Engine],
        gate: Gate,
        queue: Queue,
        *,
        patience_s: float | None = None,
    ) -> None:
        """`patience_s`: how long a client waits for its first token once forwarded; None: for ever."""
        self.profile, self.engines, self.gate, self.queue = profile, engines, gate, queue
        self.patience_s = patience_s
        self.now_s = 0.0
        self.ends: list[list[float]] = [[] for _ in engines]
        """When each step of each engine ended."""
        self.steps_s: list[list[float]] = [[] for _ in engines]
        self.kv_time = 0.0
        self.running_time = 0.0
        self.busy_time = 0.0
        self.preempted_s: list[tuple[float, int]] = []
        """When, and how many."""
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = count()
        self._idle = [True] * len(engines)
        self._pinned: list[Job | None] = [None] * len(engines)
        self._backlog: Iterator[Job] | None = None
        self.counting_from_s = 0.0

    # Running

    def run(self, jobs: list[Job], until_s: float) -> None:
        for job in jobs:
            self._at(job.arrival_s, self._arrive, job)
        self._at(0.0, self._beat)
        self._play(until_s)

    def run_backlog(self, backlog: Iterator[Job], until_s: float) -> None:
        """With a queue that never runs dry."""
        self._backlog = backlog
        self._at(0.0, self._beat)
        self._play(until_s)

    def _play(self, until_s: float) -> None:
        events = self._events
        while events and events[0][0] <= until_s:
            self.now_s, _, action, arguments = heappop(events)
            action(*arguments)

    def _at(self, time_s: float, action: Callable[..., None], *arguments: object) -> None:
        heappush(self._events, (time_s, next(self._order), action, arguments))

    # Jobs

    def _arrive(self, job: Job) -> None:
        if not self.gate.queues:
            self._grant(job, min(range(len(self.engines)), key=lambda engine: self.gate.load(job, engine)))
            return
        self.queue.put(job)
        self._limit_wait(job)
        self._pump()

    def _limit_wait(self, job: Job) -> None:
        job.deadline_s = self.now_s + self.profile.ttl_s
        self._at(job.deadline_s, self._expire, job)

    def _expire(self, job: Job) -> None:
        if job.granted_s is not None or job.gone or self.now_s < job.deadline_s:
            return
        job.gone = True
        self.queue.drop(job)
        self._unpin(job)
        self._pump()

    def _lose_patience(self, job: Job) -> None:
        if job.first_token_s is None and not job.gone:
            job.gone = True
            self._withdraw(job)

    def _withdraw(self, job: Job) -> None:
        assert job.sequence is not None
        self.engines[job.engine].abort(job.sequence)
        self.gate.ended(job, self.now_s, finished=False)

    def _grant(self, job: Job, engine: int) -> None:
        job.engine, job.granted_s = engine, self.now_s
        job.sequence = Sequence(job, job.prompt, job.target)
        self.gate.granted(job, self.now_s)
        self.engines[engine].add(job.sequence)
        self._wake(engine)
        if self.patience_s is not None:
            self._at(job.arrival_s + self.patience_s, self._lose_patience, job)

    def _revoke(self, job: Job) -> None:
        """Aborted on its engine, and queued again at its old place: its client has been sent nothing."""
        self._withdraw(job)
        job.revoked += 1
        job.granted_s = job.first_token_s = job.sequence = None
        self.queue.put(job)
        self._limit_wait(job)

    # The grant loop

    def _pump(self) -> None:
        while self._refill() and self._grant_some():
            pass

    def _refill(self) -> bool:
        while self._backlog is not None and len(self.queue) < 16:
            self.queue.put(next(self._backlog))
        return len(self.queue) > 0

    def _grant_some(self) -> bool:
        """One pass over the candidates; whether it is worth another."""
        passed: list[Job] = []
        granted = False
        for job in list(self.queue.candidates()):
            engine = self._engine_for(job)
            if engine is None:
                passed.append(job)
                continue
            self.queue.take(job)
            self._unpin(job)
            self._grant(job, engine)
            granted = True
            for other in passed:
                other.bypassed += 1
                self._pin_if_due(other)
        return granted

    def _engine_for(self, job: Job) -> int | None:
        best, chosen = math.inf, None
        for engine, pinned in enumerate(self._pinned):
            if pinned is None or pinned is job:
                load = self.gate.load(job, engine)
                if load <= 1.0 and load < best:
                    best, chosen = load, engine
        return chosen

    def _pin_if_due(self, job: Job) -> None:
        if job.bypassed < BYPASS_MAX or job in self._pinned:
            return
        free = [engine for engine, pinned in enumerate(self._pinned) if pinned is None]
        if free:
            self._pinned[min(free, key=lambda engine: self.gate.load(job, engine))] = job

    def _unpin(self, job: Job) -> None:
        self._pinned = [None if pinned is job else pinned for pinned in self._pinned]

    # Engines

    def _wake(self, engine: int) -> None:
        if self._idle[engine]:
            self._idle[engine] = False
            self._at(self.now_s, self._step, engine)

    def _step(self, engine: int) -> None:
        model = self.engines[engine]
        if not model.has_work:
            self._idle[engine] = True
            return
        step = model.step()
        if step.preempted:
            self._note_preempted(step)
        if not step.step_s:
            self._at(self.now_s, self._step, engine)
            return
        self.ends[engine].append(self.now_s + step.step_s)
        self.steps_s[engine].append(step.step_s)
        if self.now_s >= self.counting_from_s:
            self.kv_time += step.kv_used * step.step_s
            self.running_time += step.running * step.step_s
            self.busy_time += step.step_s
        self._at(self.now_s + step.step_s, self._deliver, engine, step)

    def _note_preempted(self, step: Step) -> None:
        self.preempted_s.append((self.now_s, len(step.preempted)))
        for sequence in step.preempted:
            sequence.key.preempted += 1

    def _deliver(self, engine: int, step: Step) -> None:
        for sequence in step.started:
            job: Job = sequence.key
            if job.first_token_s is None and not job.gone and job.sequence is sequence:
                job.first_token_s = self.now_s
                self.gate.started(job, self.now_s)
        for sequence in step.finished:
            job = sequence.key
            if job.sequence is sequence and not job.gone:
                job.ended_s = self.now_s
                self.gate.ended(job, self.now_s, finished=True)
                self.queue.correct(job, job.target)
        if (step.finished or step.started) and self.gate.queues:
            self._pump()
        self._step(engine)

    def _beat(self) -> None:
        for job in self.gate.beat(self.now_s):
            self._revoke(job)
        self._pump()
        self._at(self.now_s + BEAT_S, self._beat)
