"""One engine, the same as `kvgate_policies.engine_model` step for step, in constant time per step.

A running sequence emits one token in each step, so nothing of it needs touching until it ends or is preempted:
its computed tokens are `base + step`, it needs a block whenever that is a multiple of the block size, and its
last step is known beforehand. Sequences are counted by their phase within a block; only admissions, ends and
preemptions cost anything. A test runs both on the same inputs and compares every step.

Restrictions: first come, first served; no prefix cache; more tokens in a step than sequences (checked). Then at
most one sequence is partly prefilled, and it is the last of the running ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from kvgate_policies.engine_model import StepProfile


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on the engine, and the story of its tokens."""

    key: Any
    """Whose it is."""
    prompt: int
    target: int
    """Tokens after which it ends."""
    known: int = 0
    """Prompt and emitted tokens, while it is not decoding."""
    computed: int = 0
    """While it is not decoding."""
    base: int | None = None
    """While it decodes: computed tokens less the step."""
    last_step: int = -1
    runs: list[tuple[int, int]] = field(default_factory=list)
    """First and last step of each unbroken run of tokens."""


@dataclass(slots=True)
class Step:
    """What one step brings; the tokens of the sequences that decode are not listed."""

    step_s: float
    started: list[Sequence]
    """Emit the first token of a run: prefilled, or prefilled again."""
    finished: list[Sequence]
    preempted: list[Sequence]
    admitted: list[Sequence]
    kv_used: int
    running: int


class Engine:
    def __init__(
        self,
        *,
        blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        profile: StepProfile,
    ) -> None:
        if max_num_seqs >= max_num_batched_tokens:
            raise ValueError("more sequences than tokens in a step: use the engine model itself")
        self.blocks, self.block_size = blocks, block_size
        self.max_num_seqs, self.budget, self.profile = max_num_seqs, max_num_batched_tokens, profile
        self.step_index = 0
        self.used = 0
        self.preemptions = 0
        self.tokens = 0
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.waiting_tokens = 0
        self._tail: Sequence | None = None
        """The one that is partly prefilled."""
        self._decoding = 0
        self._context = 0
        """Computed tokens of all that decode, before this step."""
        self._phases = [0] * block_size
        self._ends: dict[int, list[Sequence]] = {}

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def generated(self, sequence: Sequence) -> int:
        if sequence.base is None:
            return sequence.known - sequence.prompt
        return sequence.base + self.step_index + 1 - sequence.prompt

    def held(self, sequence: Sequence) -> int:
        """Its blocks."""
        computed = sequence.computed if sequence.base is None else sequence.base + self.step_index
        return self._blocks(computed)

    def add(self, sequence: Sequence) -> None:
        sequence.known = sequence.prompt
        self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> bool:
        """Drop it; False if it is not here."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            return True
        if sequence not in self.running:
            return False
        self._take_off(sequence)
        self.running.remove(sequence)
        return True

    def step(self) -> Step:
        preempted = self._make_room()
        step = self.step_index
        self.used += self._phases[-step % self.block_size]
        decoding = self._decoding
        self._context += decoding
        context, computed = self._context, decoding
        budget = self.budget - decoding
        started: list[Sequence] = []
        admitted: list[Sequence] = []
        if (tail := self._tail) is not None:
            count = min(tail.known - tail.computed, budget)
            decoding += tail.known > tail.prompt and tail.known - tail.computed == 1
            self._prefill(tail, count, started)
            context += tail.computed
            computed += count
            budget -= count
        while not preempted and self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            head = self.waiting[0]
            if self._blocks(head.known) > self.blocks - self.used:
                break
            self.waiting.popleft()
            self.running.append(head)
            admitted.append(head)
            count = min(head.known, budget)
            self._prefill(head, count, started)
            context += head.computed
            computed += count
            budget -= count
        kv_used, running = self.used, len(self.running)
        step_s = self.profile.duration_s(
            decoding=decoding, kv_tokens=context, prefill_tokens=computed - decoding
        )
        finished = self._emit(started) if computed else []
        return Step(step_s if computed else 0.0, started, finished, preempted, admitted, kv_used, running)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _prefill(self, sequence: Sequence, count: int, started: list[Sequence]) -> None:
        self.used += self._blocks(sequence.computed + count) - self._blocks(sequence.computed)
        sequence.computed += count
        if sequence.computed == sequence.known:
            started.append(sequence)
            self._tail = None
        else:
            self._tail = sequence

    def _emit(self, started: list[Sequence]) -> list[Sequence]:
        """Everyone whose known tokens are all computed emits one; the step is over."""
        step = self.step_index
        self.tokens += self._decoding + len(started)
        finished = self._ends.pop(step, [])
        self.step_index += 1
        for sequence in started:
            sequence.known += 1
            sequence.base = sequence.computed - self.step_index
            sequence.last_step = sequence.target + sequence.prompt - 2 - sequence.base
            sequence.runs.append((step, sequence.last_step))
            self._decoding += 1
            self._context += sequence.computed
            self._phases[sequence.base % self.block_size] += 1
            if sequence.last_step <= step:
                finished.append(sequence)
            else:
                self._ends.setdefault(sequence.last_step, []).append(sequence)
        for sequence in finished:
            self._remove_decoding(sequence)
        if finished:
            gone = set(map(id, finished))
            self.running = [sequence for sequence in self.running if id(sequence) not in gone]
        return finished

    def _remove_decoding(self, sequence: Sequence) -> None:
        assert sequence.base is not None
        computed = sequence.base + self.step_index
        sequence.known, sequence.computed = computed + 1, 0
        self._phases[sequence.base % self.block_size] -= 1
        self._decoding -= 1
        self._context -= computed
        self.used -= self._blocks(computed)
        sequence.base = None

    def _take_off(self, sequence: Sequence) -> None:
        """Free the blocks of a running one that has not ended."""
        if sequence.base is None:
            self.used -= self._blocks(sequence.computed)
            sequence.computed = 0
            self._tail = None
            return
        self._ends[sequence.last_step].remove(sequence)
        first, _ = sequence.runs[-1]
        sequence.runs[-1] = (first, self.step_index - 1)
        self._remove_decoding(sequence)

    def _make_room(self) -> list[Sequence]:
        """Preempt, last admitted first, until all that remain get the blocks of this step."""
        tail = self._tail
        need = self._phases[-self.step_index % self.block_size]
        if tail is not None:
            count = min(tail.known - tail.computed, self.budget - self._decoding)
            need += self._blocks(tail.computed + count) - self._blocks(tail.computed)
        if need <= self.blocks - self.used:
            return []
        return self._preempt()

    def _preempt(self) -> list[Sequence]:
        """As the scheduler does it: in order of running, each at the cost of the last."""
        preempted: list[Sequence] = []
        free = self.blocks - self.used
        budget = self.budget
        index = 0
        while index < len(self.running):
            sequence = self.running[index]
            need, count = self._need(sequence, budget)
            while need > free:
                victim = self.running.pop()
                free += self.held(victim)
                self._take_off(victim)
                self.preemptions += 1
                self.waiting.appendleft(victim)
                preempted.append(victim)
                if victim is sequence:
                    break
            else:
                free -= need
                budget -= count
                index += 1
        return preempted

    def _need(self, sequence: Sequence, budget: int) -> tuple[int, int]:
        if sequence.base is not None:
            return int((sequence.base + self.step_index) % self.block_size == 0), 1
        count = min(sequence.known - sequence.computed, budget)
        return self._blocks(sequence.computed + count) - self._blocks(sequence.computed), count
