"""The engine model itself in virtual time, step by step: what `LeapingEngine` is held to, and slower by far."""

from __future__ import annotations

from kvgate.replay.engine_base import NEVER_S, EngineSizes, Seen, Sequence, Settled
from kvgate_policies.engine_model import EngineModel, SimRequest, StepResult


def make_model(sizes: EngineSizes) -> EngineModel:
    """Raises ValueError for sizes with which no vLLM would start."""
    return EngineModel(
        num_gpu_blocks=sizes.num_gpu_blocks,
        block_size=sizes.block_size,
        max_model_len=sizes.max_model_len,
        max_num_seqs=sizes.max_num_seqs,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        prefix_caching=False,
        watermark=sizes.watermark,
        profile=sizes.profile,
    )


class SteppingEngine:
    """An `Engine` that does every step."""

    def __init__(self, sizes: EngineSizes) -> None:
        """Raises ValueError for sizes with which no vLLM would start."""
        self._model = make_model(sizes)
        self._sequences: dict[str, Sequence] = {}
        self._ids: dict[int, str] = {}
        self._count = 0
        self._aborting: list[Sequence] = []
        self._result: StepResult | None = None
        self.due_s = NEVER_S
        self._held_block_s = 0.0

    @property
    def preemptions(self) -> int:
        return self._model.counters.preemptions

    def add(self, sequence: Sequence, now_s: float) -> None:
        self._count += 1
        request_id = str(self._count)
        self._ids[id(sequence)] = request_id
        self._sequences[request_id] = sequence
        self._model.add(SimRequest(request_id, sequence.prompt, sequence.target))
        if self.due_s == NEVER_S:
            self._begin(now_s)

    def abort(self, sequence: Sequence, now_s: float) -> None:
        del now_s
        self._aborting.append(sequence)

    def generated(self, sequence: Sequence, now_s: float) -> int:
        del now_s  # what the step in progress brings is not counted until it is over
        return sequence.generated

    def seen(self, now_s: float) -> Seen:
        del now_s
        model = self._model
        return Seen(model.kv_used, model.running, model.waiting, self.preemptions, model.counters.steps)

    def held_block_s(self, now_s: float) -> float:
        if self._result is None:
            return self._held_block_s
        return self._held_block_s - self._result.kv_used * (self.due_s - now_s)

    def settle(self) -> Settled:
        now_s, result = self.due_s, self._result
        if result is None:
            raise AssertionError("no step is in progress")
        started = [self._sequences[request_id] for request_id in result.tokens]
        fresh = [sequence for sequence in started if not sequence.generated]
        for sequence in started:
            sequence.generated += 1
        finished = [self._forget(request_id) for request_id, _ in result.finished]
        for sequence in self._aborting:
            self._abort(sequence)
        self._aborting.clear()
        self._begin(now_s)
        return Settled(fresh, finished)

    def _begin(self, now_s: float) -> None:
        if not self._model.has_work:
            self.due_s, self._result = NEVER_S, None
            return
        self._result = self._model.step()
        for request_id in self._result.preempted:
            self._sequences[request_id].preempted += 1
        self._held_block_s += self._result.kv_used * self._result.step_s
        self.due_s = now_s + self._result.step_s

    def _forget(self, request_id: str) -> Sequence:
        sequence = self._sequences.pop(request_id)
        del self._ids[id(sequence)]
        return sequence

    def _abort(self, sequence: Sequence) -> None:
        request_id = self._ids.get(id(sequence))
        if request_id is not None and self._model.abort(request_id):
            self._forget(request_id)
