"""The engine model in real time: one task steps it and lets each step take as long as its profile says.

Nothing else touches the model while a step lasts but arrivals and aborts, as in vLLM. A stopped or restarted
engine ends every job it had; no job is left waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvgate.clock import Clock, SystemClock
from kvgate.sim.jobs import Fate, Job
from kvgate.sim.stats import SimStats
from kvgate_policies.engine_model import EngineModel, SimRequest, StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvgate.sim.generation import Choice

LOG_STEPS_MAX = 100_000
"""Steps remembered in `log`: over forty minutes at 25 ms, some 50 MB at the most."""


@dataclass(slots=True)
class _Place:
    """Where a sequence's tokens go, and the times that vLLM measures."""

    job: Job
    index: int
    arrived_s: float
    prompt_tokens: int
    max_tokens: int
    tokens: int = 0
    last_token_s: float | None = None
    admitted: bool = False


class SimEngine:
    def __init__(self, make_model: Callable[[], EngineModel], clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._make_model = make_model
        self.model = make_model()
        self.stats = SimStats(started_at=time.time())
        self.log: deque[StepResult] = deque(maxlen=LOG_STEPS_MAX)
        self._places: dict[str, _Place] = {}
        self._jobs: dict[Job, list[str]] = {}
        self._ids = 0
        self._work = asyncio.Event()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self.stopping = False

    @property
    def jobs(self) -> int:
        return len(self._jobs)

    # Coming and going

    def submit(self, choices: Sequence[Choice], *, priority: int = 0) -> Job | None:
        """Put all sequences of a request in line; None when the engine is too busy for all of them."""
        job = self.attach(len(choices))
        for index, choice in enumerate(choices):
            if not self._add(job, index, choice, priority):
                self.release(job)
                return None
        self._work.set()
        return job

    def attach(self, sequences: int = 0) -> Job:
        """A job that takes nothing from the engine yet, but shares its fate."""
        job = Job(sequences)
        self._jobs[job] = []
        if self.stopping:
            job.end(Fate.ABORTED)
        return job

    def _add(self, job: Job, index: int, choice: Choice, priority: int) -> bool:
        self._ids += 1
        request = SimRequest(
            id=str(self._ids),
            prompt_tokens=len(choice.prompt),
            max_tokens=choice.max_tokens,
            priority=priority,
            stop_after=choice.stop_after,
            token_ids=choice.prompt,
        )
        if not self.model.add(request):
            return False
        self._places[request.id] = _Place(
            job, index, self._clock.monotonic(), len(choice.prompt), choice.max_tokens
        )
        self._jobs[job].append(request.id)
        return True

    def release(self, job: Job) -> None:
        """The request is over, finished or not: what still runs is aborted, its blocks are free at once."""
        for request_id in self._jobs.pop(job, ()):
            if self._places.pop(request_id, None):
                self.model.abort(request_id)

    def stop(self) -> None:
        """End all jobs as SIGTERM does: what was generated stands, finish_reason is `abort`."""
        self.stopping = True
        for job in self._jobs:
            self.stats.ended["abort"] += len(job.unfinished)
            job.end(Fate.ABORTED)

    def restart(self) -> None:
        """As after a crash: KV cache and counters are new, every connection breaks."""
        for job in list(self._jobs):
            job.end(Fate.CUT)
            self.release(job)
        self.model = self._make_model()
        self.stats = SimStats(started_at=time.time())

    def freeze(self) -> None:
        """Take requests, compute nothing."""
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()

    # The step loop

    async def run(self) -> None:
        """Step while there is work, for ever. A late wake-up shortens the next step, so the mean is kept."""
        due_s = self._clock.monotonic()
        while True:
            if not self.model.has_work:
                self._work.clear()
                await self._work.wait()
                due_s = self._clock.monotonic()
            await self._thawed.wait()
            model = self.model
            result = model.step()
            due_s = max(due_s + result.step_s, self._clock.monotonic())
            await asyncio.sleep(due_s - self._clock.monotonic())
            if model is self.model:
                self._deliver(result)

    def _deliver(self, result: StepResult) -> None:
        now_s = self._clock.monotonic()
        self.log.append(result)
        self.stats.running_max = max(self.stats.running_max, result.running)
        self.stats.iteration_tokens.observe(result.prompt_tokens + len(result.tokens))
        for request_id in result.admitted:
            self._note_admission(request_id, now_s - result.step_s)
        reasons = dict(result.finished)
        for request_id in result.tokens:
            place = self._places.get(request_id)
            if place is not None:
                self._hand_over(request_id, place, reasons.get(request_id), now_s)

    def _note_admission(self, request_id: str, now_s: float) -> None:
        place = self._places.get(request_id)
        if place is not None and not place.admitted:
            place.admitted = True
            self.stats.queue.observe(max(0.0, now_s - place.arrived_s))

    def _hand_over(self, request_id: str, place: _Place, reason: str | None, now_s: float) -> None:
        if place.last_token_s is None:
            self.stats.ttft.observe(now_s - place.arrived_s)
        else:
            self.stats.itl.observe(now_s - place.last_token_s)
        place.last_token_s = now_s
        place.tokens += 1
        if reason is not None:
            self.stats.ended[reason] += 1
            self.stats.e2e.observe(now_s - place.arrived_s)
            self.stats.ended_with(place.prompt_tokens, place.tokens, place.max_tokens)
            del self._places[request_id]
        place.job.push(place.index, 1, reason)
