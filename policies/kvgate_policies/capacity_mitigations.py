"""What can be changed so that more sequences fit: as data.

A mitigation has a name, what it trades, a risk, a cost, a precondition, and a function from one setup to
another. It holds no number of sequences: what it gives is computed (`capacity_options`), setup by setup.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING

from kvgate_policies.capacity import make_plan
from kvgate_policies.capacity_dtypes import ELEMENT_BYTES
from kvgate_policies.capacity_setup import Memory, Setup

if TYPE_CHECKING:
    from collections.abc import Callable

UTILIZATION_BOLD = Fraction(95, 100)
LENGTH_LEAST = 1024
"""Tokens: a shorter window is no use to anyone."""
GPU_STEPS = (2, 4, 8)
"""By how much the GPUs are multiplied: up to a common server's eight times one."""

DOUBLING_CLAIM = 4.0
"""Twice the GPUs are often said to roughly quadruple the ceiling: twice the memory, and half the weights."""


class Trade(StrEnum):
    """What is given for the capacity. Two of different kinds can't be weighed against each other here."""

    NOTHING = "nothing"
    QUALITY = "quality of answers"
    LENGTH = "length of requests"
    SAFETY = "safety margin"
    MONEY = "money"


class Risk(IntEnum):
    NONE = 0
    SMALL = 1
    MODERATE = 2
    HIGH = 3


@dataclass(frozen=True, slots=True)
class Mitigation:
    """One change. `apply` gives the changed setup, or in words why it can't be had here."""

    label: str
    """Whatever the setup."""
    name: Callable[[Setup], str]
    """For the changed setup."""
    trades: Trade
    risk: Risk
    why_risky: str
    cost: str
    precondition: Callable[[Setup], str]
    apply: Callable[[Setup], Setup | str]
    claimed: float | None = None
    """How many times the sequences it is commonly said to give."""


def _with_fp8(setup: Setup) -> Setup | str:
    now = make_plan(setup).kv_dtype
    if ELEMENT_BYTES.get(now, 1) < 2:
        return f"the KV cache is {now} already"
    return replace(setup, kv_dtype="fp8")


def _with_half_the_length(setup: Setup) -> Setup | str:
    half = setup.max_model_len // 2
    if half < LENGTH_LEAST:
        return f"half of {setup.max_model_len:,} tokens is less than {LENGTH_LEAST:,}"
    return replace(setup, max_model_len=half)


def _with_more_utilization(setup: Setup) -> Setup | str:
    if not isinstance(setup.memory, Memory):
        return "the KV cache's memory was given directly"
    if setup.memory.utilization >= UTILIZATION_BOLD:
        return f"it is {float(setup.memory.utilization):g} already"
    return replace(setup, memory=replace(setup.memory, utilization=UTILIZATION_BOLD))


def _with_tensor_parallel(times: int) -> Callable[[Setup], Setup | str]:
    def apply(setup: Setup) -> Setup | str:
        if not isinstance(setup.memory, Memory):
            return "how much memory the weights take is not known, since the KV cache's was given directly"
        return replace(setup, tensor_parallel=setup.tensor_parallel * times)

    return apply


def _with_copies(times: int) -> Callable[[Setup], Setup | str]:
    return lambda setup: replace(setup, data_parallel=setup.data_parallel * times)


def _unchanged(setup: Setup) -> Setup | str:
    return setup


FP8 = Mitigation(
    label="fp8 KV cache",
    name=lambda _: "fp8 KV cache",
    trades=Trade.QUALITY,
    risk=Risk.SMALL,
    why_risky="answers can change a little",
    cost="none",
    precondition=lambda _: (
        "answers were compared on your own tasks, and the GPU and its attention kernel have fp8"
    ),
    apply=_with_fp8,
    claimed=2.0,
)
HALF_LENGTH = Mitigation(
    label="half the max_model_len",
    name=lambda setup: f"max_model_len {setup.max_model_len}",
    trades=Trade.LENGTH,
    risk=Risk.MODERATE,
    why_risky="longer requests are refused or cut",
    cost="none",
    precondition=lambda setup: (
        f"the measured 99th percentile of prompt + output is below {setup.max_model_len:,} tokens: then it is free"
    ),
    apply=_with_half_the_length,
    claimed=2.0,
)
BOLD_UTILIZATION = Mitigation(
    label=f"gpu_memory_utilization {float(UTILIZATION_BOLD):g}",
    name=lambda _: f"gpu_memory_utilization {float(UTILIZATION_BOLD):g}",
    trades=Trade.SAFETY,
    risk=Risk.HIGH,
    why_risky="fragile: a peak outside the KV cache ends the server",
    cost="none",
    precondition=lambda _: (
        "nothing else is on the GPU, and a load test with the longest prompts at full concurrency went well"
    ),
    apply=_with_more_utilization,
)
QUEUE_THE_REST = Mitigation(
    label="cap max_num_seqs, queue the rest",
    name=lambda setup: f"cap max_num_seqs at {make_plan(setup).max_sequences}, queue the rest",
    trades=Trade.NOTHING,
    risk=Risk.NONE,
    why_risky="adds no capacity: what failed now waits",
    cost="none",
    precondition=lambda setup: (
        "a queue with a bound stands in front. kvgate is one, and counts blocks in place of sessions; a plain cap "
        f"is safe at {make_plan(setup).max_sequences_engine} for the whole {setup.max_model_len:,} tokens"
    ),
    apply=_unchanged,
)


def _tensor_parallel(times: int) -> Mitigation:
    return Mitigation(
        label=f"TP × {times}",
        name=lambda setup: f"TP {setup.tensor_parallel}",
        trades=Trade.MONEY,
        risk=Risk.NONE,
        why_risky="",
        cost=f"{times} × the GPUs",
        precondition=lambda _: "the GPUs are in one server, with a fast link between them",
        apply=_with_tensor_parallel(times),
        claimed=DOUBLING_CLAIM if times == 2 else None,
    )


def _copies(times: int) -> Mitigation:
    return Mitigation(
        label=f"{times} × the copies",
        name=lambda setup: f"{setup.data_parallel} copies",
        trades=Trade.MONEY,
        risk=Risk.NONE,
        why_risky="",
        cost=f"{times} × the GPUs",
        precondition=lambda _: "a router in front knows what each one holds, as kvgate does",
        apply=_with_copies(times),
    )


TENSOR_PARALLEL = tuple(_tensor_parallel(times) for times in GPU_STEPS)
COPIES = tuple(_copies(times) for times in GPU_STEPS)
SWITCHES = (FP8, HALF_LENGTH, BOLD_UTILIZATION)
"""Without more GPUs; each can be combined with all others."""
