"""One engine in virtual time: every decision of `kvgate_policies.engine_model`, without the steps between them.

While all sequences decode, nothing is decided from one step to the next: each emits a token, each takes a block
whenever its computed tokens reach a whole number of them, and the step takes a known time. So the engine *leaps* over
such steps in one go, up to the first that a sequence ends with, or that could lack a block. Every other step is done
as the scheduler does it. It is therefore no approximation: for the same arrivals, admissions, ends and preemptions
are those of the engine model, at the same times but for rounding. A test holds the two together.

Of j steps from now on, with n sequences that decode and C tokens computed of theirs, the time is, by the step profile
(`kvgate_policies.engine_model_types.StepProfile`),

    T(j) = j · (step + decode · n + kv · C) + kv · n · j (j + 1) / 2

Restrictions, as far as `accepts_sizes` says: first come, first served; no prefix cache; more tokens in a step than
sequences. Then at most one sequence is partly prefilled, and it is the last of the running ones.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush

from kvgate.replay.engine_base import NEVER_S, EngineSizes, Seen, Sequence, Settled, accepts_sizes

SLACK_S = 1e-9
"""Times closer than this are one: an arrival in the moment in which a step ends still comes in that step."""


class LeapingEngine:
    """An `Engine` that leaps. Not safe for threads."""

    def __init__(self, sizes: EngineSizes) -> None:
        """Raises ValueError for sizes that it can't stand for; `EngineModel` refuses those of no engine."""
        if not accepts_sizes(sizes):
            raise ValueError("more sequences than tokens in a step: take the engine model itself")
        self._blocks, self._block_size = sizes.usable_blocks, sizes.block_size
        self._reserve = int(sizes.watermark * sizes.num_gpu_blocks)
        self._seqs_max, self._budget = sizes.max_num_seqs, sizes.max_num_batched_tokens
        self._profile = sizes.profile
        self.due_s = NEVER_S
        self.preemptions = 0
        self._held_block_s = 0.0
        self._step = 0
        self._used = 0
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._tail: Sequence | None = None
        """The one that is partly prefilled."""
        self._decoding = 0
        self._context = 0
        """Computed tokens of all that decode, before the present step."""
        self._phases = [0] * sizes.block_size
        """How many that decode need a block in a step, by the step's number within a block."""
        self._ends: dict[int, list[Sequence]] = {}
        self._end_steps: list[int] = []
        """A heap of the keys of `_ends`, and of some that are no more."""
        self._aborting: list[Sequence] = []
        self._began_s = 0.0
        self._leap = 0
        """Steps of the present leap; 0 while a single step is in progress, or none."""
        self._settled = Settled([], [])

    # What is told to it

    def add(self, sequence: Sequence, now_s: float) -> None:
        sequence.known = sequence.prompt
        held_up = bool(self._waiting)
        self._waiting.append(sequence)
        if self.due_s == NEVER_S:
            self._begin(now_s)
        elif not held_up:  # one that waits already holds up those behind it
            self._cut(now_s)

    def abort(self, sequence: Sequence, now_s: float) -> None:
        if sequence in self._waiting:
            self._waiting.remove(sequence)
            sequence.generated = sequence.known - sequence.prompt
        else:
            self._aborting.append(sequence)
        self._cut(now_s)

    def generated(self, sequence: Sequence, now_s: float) -> int:
        if sequence.base is None:
            ends_now = not self._leap and now_s < self.due_s - SLACK_S and sequence in self._settled.finished
            return max(sequence.known - sequence.prompt, sequence.generated, 0) - ends_now
        return sequence.base + self._steps_over(now_s) + 1 - sequence.prompt

    def _steps_over(self, now_s: float) -> int:
        """Steps that are over by now."""
        if not self._leap:
            return self._step - (now_s < self.due_s - SLACK_S)
        step = self._step_at(now_s - self._began_s)
        is_over = self._leap_s(step) <= now_s - self._began_s + SLACK_S
        return self._step + step - (not is_over)

    def seen(self, now_s: float) -> Seen:
        steps = self._steps_over(now_s)
        grown = self._growth(steps - self._step) if self._leap else 0
        return Seen(self._used + grown, len(self._running), len(self._waiting), self.preemptions, steps)

    def held_block_s(self, now_s: float) -> float:
        if self.due_s == NEVER_S:
            return self._held_block_s
        if self._leap:
            return self._held_block_s + self._used * (now_s - self._began_s)
        return self._held_block_s - self._used * (self.due_s - now_s)

    def settle(self) -> Settled:
        now_s = self.due_s
        settled = self._land() if self._leap else self._settled
        self._settled = Settled([], [])
        for sequence in self._aborting:
            self._take_out(sequence)
        self._aborting.clear()
        self._begin(now_s)
        return settled

    # Leaping

    def _begin(self, now_s: float) -> None:
        """Begin whatever comes next: a leap, a step, or nothing."""
        self._began_s = now_s
        self._leap = 0
        if not (self._running or self._waiting):
            self.due_s = NEVER_S
            return
        self._leap = self._steps_ahead()
        took_s = self._leap_s(self._leap) if self._leap else self._single_step()
        self.due_s = now_s + took_s

    def _steps_ahead(self) -> int:
        """How many steps can be leapt over: 0 when the next one has something to decide."""
        if self._tail is not None or not self._decoding:
            return 0
        if self._waiting and self._admits(self._waiting[0]):
            return 0
        steps = self._next_end() - self._step + 1
        free = self._blocks - self._used
        if free >= (steps // self._block_size + 1) * self._decoding:
            return steps
        return self._steps_with_room(steps, free)

    def _steps_with_room(self, steps_max: int, free: int) -> int:
        """As many as take no more than the free blocks: in `block_size` steps each sequence takes one."""
        rounds, left = divmod(free, self._decoding)
        steps = rounds * self._block_size
        while steps < steps_max and (need := self._phases[-(self._step + steps) % self._block_size]) <= left:
            left -= need
            steps += 1
        return min(steps, steps_max)

    def _next_end(self) -> int:
        while self._end_steps[0] not in self._ends:
            heappop(self._end_steps)
        return self._end_steps[0]

    def _leap_s(self, steps: int) -> float:
        """T(j); see above."""
        profile, decoding = self._profile, self._decoding
        first_s = profile.duration_s(decoding=decoding, kv_tokens=self._context, prefill_tokens=0)
        return steps * first_s + profile.kv_s_per_token * decoding * (steps * (steps + 1) / 2)

    def _cut(self, now_s: float) -> None:
        """End the present leap with the step that is in progress now."""
        if not self._leap:
            return
        self._leap = self._step_at(now_s - self._began_s)
        self.due_s = self._began_s + self._leap_s(self._leap)

    def _step_at(self, elapsed_s: float) -> int:
        """The first step that ends no earlier, by solving T(j) = elapsed; rounding is put right by looking."""
        growth_s = self._profile.kv_s_per_token * self._decoding / 2
        first_s = self._leap_s(1) - growth_s
        if growth_s > 0:
            root = (math.sqrt(first_s * first_s + 4 * growth_s * max(elapsed_s, 0.0)) - first_s) / (
                2 * growth_s
            )
        else:
            root = elapsed_s / first_s if first_s > 0 else 0.0
        step = min(max(math.ceil(root), 1), self._leap)
        while step > 1 and self._leap_s(step - 1) >= elapsed_s - SLACK_S:
            step -= 1
        while step < self._leap and self._leap_s(step) < elapsed_s - SLACK_S:
            step += 1
        return step

    def _land(self) -> Settled:
        """The steps of the leap are over."""
        steps, decoding = self._leap, self._decoding
        used = self._used + self._phases[-self._step % self._block_size]
        self._used += self._growth(steps)
        self._held_block_s += (used + self._used) / 2 * (self.due_s - self._began_s)
        self._context += decoding * steps
        self._step += steps
        finished = self._ends.pop(self._step - 1, [])
        self._retire(finished)
        return Settled([], finished)

    def _growth(self, steps: int) -> int:
        """Blocks that so many steps of a leap take."""
        rounds, rest = divmod(steps, self._block_size)
        first = self._step
        return rounds * self._decoding + sum(
            self._phases[-step % self._block_size] for step in range(first, first + rest)
        )

    # One step, as the scheduler does it

    def _single_step(self) -> float:
        """Schedule and compute one step; what comes of it is told when it is over. Returns how long it takes."""
        preempted = self._make_room()
        self._used += self._phases[-self._step % self._block_size]
        decoding = self._decoding
        self._context += decoding
        context, computed, budget = self._context, decoding, self._budget - decoding
        started: list[Sequence] = []
        if (tail := self._tail) is not None:
            count = min(tail.known - tail.computed, budget)
            decoding += tail.known > tail.prompt and tail.known - tail.computed == 1
            self._prefill(tail, count, started)
            context, computed, budget = context + tail.computed, computed + count, budget - count
        while not preempted and budget > 0 and self._waiting and self._admits(self._waiting[0]):
            head = self._waiting.popleft()
            self._running.append(head)
            count = min(head.known, budget)
            self._prefill(head, count, started)
            context, computed, budget = context + head.computed, computed + count, budget - count
        step_s = self._profile.duration_s(
            decoding=decoding, kv_tokens=context, prefill_tokens=computed - decoding
        )
        self._held_block_s += self._used * step_s
        self._settled = Settled(started, self._emit(started))
        return step_s

    def _admits(self, head: Sequence) -> bool:
        """Whether the head of the line gets in now."""
        if len(self._running) >= self._seqs_max:
            return False
        reserve = self._reserve if self._running else 0
        return self._blocks_of(head.known) <= self._blocks - self._used - reserve

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _prefill(self, sequence: Sequence, count: int, started: list[Sequence]) -> None:
        self._used += self._blocks_of(sequence.computed + count) - self._blocks_of(sequence.computed)
        sequence.computed += count
        if sequence.computed == sequence.known:
            started.append(sequence)
            self._tail = None
        else:
            self._tail = sequence

    def _emit(self, started: list[Sequence]) -> list[Sequence]:
        """Everyone whose known tokens are all computed emits one; returns those that end with it."""
        step = self._step
        finished = self._ends.pop(step, [])
        self._step += 1
        for sequence in started:
            self._begin_decoding(sequence)
            if sequence.last_step <= step:
                finished.append(sequence)
            else:
                self._note_end(sequence)
        self._retire(finished)
        return finished

    def _begin_decoding(self, sequence: Sequence) -> None:
        sequence.known += 1
        sequence.base = sequence.computed - self._step
        sequence.last_step = sequence.target + sequence.prompt - 2 - sequence.base
        self._decoding += 1
        self._context += sequence.computed
        self._phases[sequence.base % self._block_size] += 1

    def _note_end(self, sequence: Sequence) -> None:
        ending = self._ends.get(sequence.last_step)
        if ending is None:
            self._ends[sequence.last_step] = [sequence]
            heappush(self._end_steps, sequence.last_step)
        else:
            ending.append(sequence)

    def _retire(self, finished: list[Sequence]) -> None:
        for sequence in finished:
            self._stop_decoding(sequence)
            sequence.generated = sequence.target
        if finished:
            gone = set(map(id, finished))
            self._running = [sequence for sequence in self._running if id(sequence) not in gone]

    def _stop_decoding(self, sequence: Sequence) -> None:
        if sequence.base is None:
            raise AssertionError("it does not decode")
        computed = sequence.base + self._step
        sequence.known, sequence.computed = computed + 1, 0
        self._phases[sequence.base % self._block_size] -= 1
        self._decoding -= 1
        self._context -= computed
        self._used -= self._blocks_of(computed)
        sequence.base = None

    # Preemption, and leaving early

    def _take_out(self, sequence: Sequence) -> None:
        """An aborted one, if it is still here: it may have ended with the step that was in progress."""
        if sequence in self._running:
            self._take_off(sequence)
            self._running.remove(sequence)
        elif sequence in self._waiting:  # preempted meanwhile
            self._waiting.remove(sequence)
        else:
            return
        sequence.generated = sequence.known - sequence.prompt

    def _take_off(self, sequence: Sequence) -> None:
        """Free the blocks of a running one that has not ended."""
        if sequence.base is None:
            self._used -= self._blocks_of(sequence.computed)
            sequence.computed = 0
            self._tail = None
            return
        ending = self._ends[sequence.last_step]
        ending.remove(sequence)
        if not ending:
            del self._ends[sequence.last_step]
        self._stop_decoding(sequence)

    def _make_room(self) -> bool:
        """Preempt, last admitted first, until all that remain get their blocks of this step; whether any was."""
        tail = self._tail
        need = self._phases[-self._step % self._block_size]
        if tail is not None:
            count = min(tail.known - tail.computed, self._budget - self._decoding)
            need += self._blocks_of(tail.computed + count) - self._blocks_of(tail.computed)
        return need > self._blocks - self._used and self._preempt()

    def _preempt(self) -> bool:
        """As the scheduler does it: in order of running, each at the cost of the last."""
        free, budget, index = self._blocks - self._used, self._budget, 0
        preemptions = self.preemptions
        while index < len(self._running):
            sequence = self._running[index]
            need, count = self._need(sequence, budget)
            while need > free:
                victim = self._running.pop()
                free += self._held(victim)
                self._take_off(victim)
                self._waiting.appendleft(victim)
                victim.preempted += 1
                self.preemptions += 1
                if victim is sequence:
                    break
            else:
                free, budget, index = free - need, budget - count, index + 1
        return self.preemptions > preemptions

    def _held(self, sequence: Sequence) -> int:
        return self._blocks_of(sequence.computed if sequence.base is None else sequence.base + self._step)

    def _need(self, sequence: Sequence, budget: int) -> tuple[int, int]:
        """Blocks and tokens of its part of this step."""
        if sequence.base is not None:
            return int((sequence.base + self._step) % self._block_size == 0), 1
        count = min(sequence.known - sequence.computed, budget)
        return self._blocks_of(sequence.computed + count) - self._blocks_of(sequence.computed), count
