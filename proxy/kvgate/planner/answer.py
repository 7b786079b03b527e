"""The answer to a question: the plan, the options, and what a machine reads of them as JSON. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvgate.errors import ConfigError
from kvgate.planner.measured import measured_json
from kvgate.planner.question import Question, Understood, understand
from kvgate.planner.recommend import policy_file, vllm_command
from kvgate_policies.capacity import Plan, make_plan
from kvgate_policies.capacity_dtypes import CapacityError
from kvgate_policies.capacity_options import Option, combinations, singles, ways_to
from kvgate_policies.model_shape import ModelShapeError

if TYPE_CHECKING:
    from kvgate.planner.backend import Reported
    from kvgate.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything that is shown."""

    understood: Understood
    plan: Plan
    singles: tuple[Option, ...]
    combinations: tuple[Option, ...]
    ways: tuple[Option, ...]
    """To the target, by GPUs; () without one, or where nothing reaches it."""
    other_reading: Plan | None
    """With GB for GiB and the other way round; None where no size of that kind was typed, or nothing is left."""
    reported: Reported | None = None
    traffic: Traffic | None = None
    """Of the request log that was named."""

    @property
    def target(self) -> float | None:
        return self.understood.question.target

    @property
    def recommended(self) -> Plan:
        """The first way to the target, that with the fewest GPUs; the present setup where there is none."""
        first = self.ways[0].plan if self.ways else None
        return self.plan if first is None else first

    @property
    def options(self) -> tuple[Option, ...]:
        """All that can be had, by risk, then cost."""
        available = [option for option in self.singles if option.plan is not None]
        return tuple(sorted((*available, *self.combinations), key=lambda option: option.rank))

    @property
    def blocks_off(self) -> int | None:
        """Planned blocks less those of the server; None where there is nothing to compare."""
        if self.reported is None or self.reported.num_gpu_blocks is None or self.understood.from_blocks:
            return None
        return self.plan.num_gpu_blocks - self.reported.num_gpu_blocks


def make_answer(
    question: Question, reported: Reported | None = None, traffic: Traffic | None = None
) -> Answer:
    """Answer it. Raises ConfigError naming what is wrong and what is allowed."""
    understood = understand(question, reported)
    try:
        plan = make_plan(understood.setup)
        alone, together = singles(understood.setup), combinations(understood.setup)
    except (CapacityError, ModelShapeError) as error:
        raise ConfigError(str(error)) from error
    ways = ways_to(question.target, (*alone, *together)) if question.target is not None else ()
    other = _other_reading(understood)
    return Answer(understood, plan, alone, together, ways, other, reported, traffic)


def _other_reading(understood: Understood) -> Plan | None:
    sizes = understood.other_sizes()
    if sizes is None:
        return None
    try:
        return make_plan(replace(understood.setup, memory=sizes.memory()))
    except CapacityError:
        return None


def answer_json(answer: Answer) -> dict[str, object]:
    """For machines. Bytes and blocks are those of one GPU; sequences are those of the whole setup."""
    plan = answer.plan
    return {
        "bytes_per_token": plan.bytes_per_token,
        "bytes_per_token_beyond_windows": plan.bytes_per_token_long,
        "bytes_per_block": plan.bytes_per_block,
        "bytes_per_sequence": plan.bytes_per_sequence,
        "pool_bytes": plan.pool_bytes,
        "num_gpu_blocks": plan.num_gpu_blocks,
        "max_sequences": plan.max_sequences,
        "max_sequences_engine": plan.max_sequences_engine,
        "tokens_per_sequence": plan.setup.max_model_len,
        "blocks_per_sequence": plan.blocks_per_sequence,
        "block_size": plan.block_size,
        "kv_dtype": plan.kv_dtype,
        "gpus": plan.setup.gpus,
        "kv_groups": [
            {
                "kind": str(group.kind),
                "layers": len(group.members),
                "tokens_per_block": group.page.tokens,
                "window": group.page.window,
            }
            for group in plan.groups
        ],
        "max_sequences_other_unit": answer.other_reading.max_sequences if answer.other_reading else None,
        "assumed": list(answer.understood.assumed),
        "notes": list(plan.setup.shape.notes),
        "options": [_option_json(option) for option in answer.options],
        "unavailable": [
            {"name": option.name, "why": option.unavailable}
            for option in answer.singles
            if option.plan is None
        ],
        "target": answer.target,
        "ways_to_target": [option.name for option in answer.ways],
        "backend": _backend_json(answer),
        "traffic": measured_json(answer),
        "recommended": {
            "vllm": vllm_command(answer.recommended, answer.understood.question),
            "kvgate_policy": policy_file(answer.recommended, answer.understood.question),
        },
    }


def _option_json(option: Option) -> dict[str, object]:
    return {
        "name": option.name,
        "max_sequences": option.max_sequences,
        "max_sequences_engine": option.plan.max_sequences_engine if option.plan else 0,
        "factor": round(option.factor, 2),
        "claimed_factor": option.claimed,
        "risk": option.risk.name.lower(),
        "why": option.why_risky,
        "trades": [str(trade) for trade in option.trades],
        "cost": option.cost,
        "gpus": option.gpus,
        "precondition": option.precondition,
    }


def _backend_json(answer: Answer) -> dict[str, object] | None:
    reported = answer.reported
    if reported is None:
        return None
    return {
        "url": reported.url,
        "num_gpu_blocks": reported.num_gpu_blocks,
        "block_size": reported.block_size,
        "max_model_len": reported.max_model_len,
        "planned_minus_reported": answer.blocks_off,
    }
