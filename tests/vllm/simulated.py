"""The same requests through the engine model, told in the words of the step log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate_policies.engine_model import EngineModel, SimRequest, StepResult
from vllm import server
from vllm.steps import Step

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm.traffic import Call

STEPS_MAX = 100_000
"""Far above any run here: a model that never ends fails instead of hanging."""


def simulate(calls: Iterable[Call]) -> list[Step]:
    """Give all calls to an idle model of the engine before its first step, and run it until it is empty."""
    model = EngineModel(
        num_gpu_blocks=server.BLOCKS,
        block_size=server.BLOCK_SIZE,
        max_model_len=server.MAX_MODEL_LEN,
        max_num_seqs=server.MAX_NUM_SEQS,
        max_num_batched_tokens=server.MAX_NUM_BATCHED_TOKENS,
        prefix_caching=True,
    )
    waiting: set[str] = set()
    for number, call in enumerate(calls):
        model.add(SimRequest(str(number), len(call.prompt), call.max_tokens, token_ids=call.prompt))
        waiting.add(str(number))
    steps: list[Step] = []
    while model.has_work:
        result = model.step()
        waiting = (waiting | set(result.preempted)) - set(result.admitted)
        steps.append(_told(len(steps), result, waiting))
        if len(steps) > STEPS_MAX:
            raise AssertionError(f"the model is not done after {STEPS_MAX} steps")
    return steps


def _told(number: int, result: StepResult, waiting: set[str]) -> Step:
    return Step(
        step=number,
        run=result.running,
        wait=tuple(sorted(waiting)),
        kv=result.kv_used,
        t=result.computed_tokens,
        out=result.tokens,
        pre=result.preempted,
        new=result.admitted,
        res=(),
        again=result.recomputed_tokens,
    )
