"""vLLM's scheduler as a pure model: which tokens come in which step, who is preempted, what the cache holds.

It knows no clock. Whoever drives it calls `step()` and lets `step_s` pass, really or in simulation; requests
are added and aborted between steps. It follows vLLM 0.32 (`v1/core/sched/scheduler.py`, read and run):

- Running sequences come first, in order, each needing blocks for its next tokens. When none is free the last
  admitted is preempted: its blocks are freed, all it had computed is lost, it goes to the front of the line.
- No sequence is admitted in a step that preempted. Else the head of the line is admitted when *all its known
  tokens* (prompt, and what it had generated before a preemption) fit into the blocks free now; `max_tokens`
  is never looked at. Those blocks are checked, not reserved: they are allocated as its chunks are computed.
  A head that does not fit holds up everyone behind it.
- The key and value of the last sampled token are never written, so a sequence of P prompt tokens holds
  `ceil((P + g − 1) / block_size)` blocks after its g-th token.
- Prefix cache: full blocks only, keyed by all that precedes them. At least the last known token is computed
  again, so a hit is at most `known − 1` tokens in whole blocks.

Not modelled: several KV groups, speculative decoding, LoRA, encoder budgets, swapping of scheduled steps
(async scheduling). Generated tokens are found again only by the preempted sequence that wrote them, not by a
later turn of the same conversation.
"""

from __future__ import annotations

from bisect import insort
from collections import deque

from kvgate_policies.engine_model_kv import KVCache
from kvgate_policies.engine_model_sequence import Plan, Sequence
from kvgate_policies.engine_model_types import (
    INSTANT,
    EngineCounters,
    FinishReason,
    SchedulingPolicy,
    SimRequest,
    StepProfile,
    StepResult,
)

__all__ = [
    "INSTANT",
    "EngineCounters",
    "EngineModel",
    "FinishReason",
    "SchedulingPolicy",
    "SimRequest",
    "StepProfile",
    "StepResult",
]


class EngineModel:
    """One engine.

    Promises: the same calls give the same answers; every sequence ends after finitely many steps, because one
    alone always fits (as vLLM, it refuses to start otherwise).
    """

    def __init__(
        self,
        *,
        num_gpu_blocks: int,
        block_size: int,
        max_model_len: int,
        max_num_seqs: int,
        max_num_batched_tokens: int = 2048,
        prefix_caching: bool = True,
        watermark: float = 0.0,
        max_num_queued_reqs: int | None = None,
        policy: SchedulingPolicy = SchedulingPolicy.FCFS,
        profile: StepProfile = INSTANT,
    ) -> None:
        """Raises `ValueError` for sizes with which no vLLM would start.

        `num_gpu_blocks` counts as vLLM does, null block included. `watermark` is the share of it that stays
        free when a sequence is admitted beside others. `max_num_queued_reqs` bounds waiting plus running.
        """
        self._kv = KVCache(
            num_gpu_blocks=num_gpu_blocks, block_size=block_size, prefix_caching=prefix_caching
        )
        self.num_gpu_blocks = num_gpu_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.watermark_blocks = int(watermark * num_gpu_blocks)
        self.max_num_queued_reqs = max_num_queued_reqs
        self.policy = SchedulingPolicy(policy)
        self.profile = profile
        self.counters = EngineCounters()
        self._check_sizes()
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._sequences: dict[str, Sequence] = {}
        self._arrivals = 0

    def _check_sizes(self) -> None:
        sizes = (self.block_size, self.max_num_seqs, self.max_num_batched_tokens)
        if min(sizes) < 1 or self.max_model_len < 2:
            raise ValueError("block_size, max_num_seqs, max_num_batched_tokens: at least 1; max_model_len: 2")
        needed = self._kv.blocks(self.max_model_len)
        if needed > self.usable_blocks:
            raise ValueError(
                f"a sequence of max_model_len {self.max_model_len} takes {needed} blocks of {self.block_size}"
                f", but only {self.usable_blocks} are usable: lower max_model_len or give more blocks",
            )

    # What it holds

    @property
    def usable_blocks(self) -> int:
        """All blocks but the null block."""
        return self._kv.pool.usable

    @property
    def kv_used(self) -> int:
        """Blocks held by live sequences; what only the prefix cache remembers is free."""
        return self._kv.pool.held

    @property
    def prefix_caching(self) -> bool:
        return self._kv.prefix_caching

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def blocks_of(self, request_id: str) -> int:
        """Blocks one sequence holds now, shared ones included. Raises `KeyError` when it is not there."""
        return len(self._sequences[request_id].blocks)

    def generated(self, request_id: str) -> int:
        """Tokens emitted so far. Raises `KeyError` when it is not there."""
        return self._sequences[request_id].generated

    # Coming and going

    def accepts(self, count: int = 1) -> bool:
        """Whether `count` more sequences stay within `max_num_queued_reqs`."""
        return self.max_num_queued_reqs is None or len(self._sequences) + count <= self.max_num_queued_reqs

    def add(self, request: SimRequest) -> bool:
        """Put a sequence in line. False: refused, too many are in flight (vLLM's "currently busy").

        Raises `ValueError` for an id in use and for a prompt that leaves no room for one output token: vLLM's
        front end refuses those before they reach the scheduler.
        """
        if request.id in self._sequences:
            raise ValueError(f"a sequence {request.id!r} is already here")
        if request.prompt_tokens >= self.max_model_len:
            raise ValueError(f"{request.id}: the prompt fills max_model_len {self.max_model_len}")
        if not self.accepts():
            self.counters.admission_rejections += 1
            return False
        self._arrivals += 1
        sequence = Sequence(request, self._arrivals, known=request.prompt_tokens)
        self._sequences[request.id] = sequence
        self._enqueue(sequence, front=False)
        return True

    def abort(self, request_id: str) -> bool:
        """Drop a sequence and free its blocks. False: it is not here, or no longer."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return False
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._kv.release(sequence)
        return True

    def preempt(self) -> str | None:
        """Preempt now the one that would be first to go; None when nothing runs."""
        if not self._running:
            return None
        victim = self._victim()
        self._running.remove(victim)
        self._send_back(victim)
        return victim.request.id

    # One step

    def step(self) -> StepResult:
        """Schedule and compute once. With nothing to do it changes nothing and takes no time."""
        plan = Plan(budget=self.max_num_batched_tokens)
        self._schedule_running(plan)
        if not plan.preempted:
            self._schedule_waiting(plan)
        return self._compute(plan)

    def _schedule_running(self, plan: Plan) -> None:
        while plan.next_running < len(self._running) and plan.budget > 0:
            sequence = self._running[plan.next_running]
            tokens = min(sequence.uncomputed, plan.budget)
            if not self._make_room(sequence, tokens, plan):
                return
            plan.schedule(sequence, tokens)
            plan.next_running += 1

    def _make_room(self, sequence: Sequence, tokens: int, plan: Plan) -> bool:
        """Blocks for the next tokens, at the cost of others. False: the sequence itself had to go."""
        while not self._kv.extend(sequence, tokens):
            victim = self._victim()
            self._preempt_in(plan, victim)
            if victim is sequence:
                return False
        return True

    def _preempt_in(self, plan: Plan, victim: Sequence) -> None:
        position = self._running.index(victim)
        del self._running[position]
        if position < plan.next_running:
            plan.next_running -= 1
        plan.budget += plan.scheduled.pop(victim, 0)
        plan.preempted.append(victim)
        self._send_back(victim)

    def _victim(self) -> Sequence:
        if self.policy is SchedulingPolicy.FCFS:
            return self._running[-1]
        return max(self._running, key=lambda sequence: sequence.rank)

    def _send_back(self, victim: Sequence) -> None:
        self._kv.release(victim)
        victim.computed = 0
        self.counters.preemptions += 1
        self._enqueue(victim, front=True)

    def _enqueue(self, sequence: Sequence, *, front: bool) -> None:
        if self.policy is SchedulingPolicy.PRIORITY:
            insort(self._waiting, sequence, key=lambda other: other.rank)
        elif front:
            self._waiting.appendleft(sequence)
        else:
            self._waiting.append(sequence)

    def _schedule_waiting(self, plan: Plan) -> None:
        while self._waiting and plan.budget > 0 and len(self._running) < self.max_num_seqs:
            sequence = self._waiting[0]
            hits = self._kv.find_prefix(sequence)
            reserve = self.watermark_blocks if self._running else 0
            if not self._kv.fits_whole(sequence, hits, reserve=reserve):
                return
            self._waiting.popleft()
            self._admit(sequence, hits, plan)

    def _admit(self, sequence: Sequence, hits: list[int], plan: Plan) -> None:
        self._kv.start(sequence, hits)
        self._count_lookup(sequence)
        tokens = min(sequence.uncomputed, plan.budget)
        if not self._kv.extend(sequence, tokens):
            raise AssertionError(f"{sequence.request.id}: a part does not fit where the whole did")
        self._running.append(sequence)
        plan.admitted.append(sequence)
        plan.schedule(sequence, tokens)
        plan.next_running += 1

    def _count_lookup(self, sequence: Sequence) -> None:
        if self._kv.prefix_caching and not sequence.admitted_before:
            self.counters.prefix_queries += sequence.known
            self.counters.prefix_hits += sequence.computed
        sequence.admitted_before = True

    def _compute(self, plan: Plan) -> StepResult:
        kv_used, running = self._kv.pool.held, len(self._running)
        computed = recomputed = decoding = prompt_tokens = 0
        tokens: list[str] = []
        finished: list[tuple[str, FinishReason]] = []
        for sequence, count in plan.scheduled.items():
            decoding += sequence.generated > 0 and sequence.uncomputed == 1
            recomputed += max(0, min(sequence.computed + count, sequence.computed_max) - sequence.computed)
            computed += count
            sequence.computed += count
            sequence.computed_max = max(sequence.computed_max, sequence.computed)
            if sequence.uncomputed:
                continue
            prompt_tokens += 0 if sequence.generated else sequence.request.prompt_tokens
            tokens.append(sequence.request.id)
            if reason := self._emit(sequence):
                finished.append((sequence.request.id, reason))
        result = StepResult(
            tokens=tuple(tokens),
            finished=tuple(finished),
            preempted=tuple(sequence.request.id for sequence in plan.preempted),
            admitted=tuple(sequence.request.id for sequence in plan.admitted),
            computed_tokens=computed,
            recomputed_tokens=recomputed,
            prompt_tokens=prompt_tokens,
            kv_used=kv_used,
            running=running,
            step_s=self._step_s(plan, decoding, computed - decoding),
        )
        self._retire(finished)
        self._count(result)
        return result

    def _step_s(self, plan: Plan, decoding: int, prefill_tokens: int) -> float:
        if not plan.scheduled:
            return 0.0
        kv_tokens = sum(sequence.computed for sequence in plan.scheduled)
        return self.profile.duration_s(decoding=decoding, kv_tokens=kv_tokens, prefill_tokens=prefill_tokens)

    def _emit(self, sequence: Sequence) -> FinishReason | None:
        request = sequence.request
        sequence.generated += 1
        sequence.known += 1
        if sequence.generated >= request.max_tokens or sequence.known >= self.max_model_len:
            return FinishReason.LENGTH
        if request.stop_after is not None and sequence.generated >= request.stop_after:
            return FinishReason.STOP
        return None

    def _retire(self, finished: list[tuple[str, FinishReason]]) -> None:
        if not finished:
            return
        gone = [self._sequences.pop(request_id) for request_id, _ in finished]
        for sequence in gone:
            self._kv.release(sequence)
        self._running = [sequence for sequence in self._running if sequence.request.id in self._sequences]
        stopped = sum(reason is FinishReason.STOP for _, reason in finished)
        self.counters.stopped += stopped
        self.counters.cut_at_length += len(finished) - stopped

    def _count(self, result: StepResult) -> None:
        self.counters.steps += bool(result.computed_tokens)
        self.counters.computed_tokens += result.computed_tokens
        self.counters.recomputed_tokens += result.recomputed_tokens
        self.counters.prompt_tokens += result.prompt_tokens
        self.counters.generation_tokens += len(result.tokens)
