"""An engine in virtual time: its sizes, its sequences, what is told to it and what it tells."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kvgate_policies.engine_model import StepProfile

NEVER_S = math.inf


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """What an engine is started with, in vLLM's words."""

    num_gpu_blocks: int
    """The null block included."""
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    profile: StepProfile
    watermark: float = 0.0
    """Share of the blocks that stays free when a sequence is admitted beside others."""

    @property
    def usable_blocks(self) -> int:
        return self.num_gpu_blocks - 1


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence on an engine: what it is, and how far it is."""

    key: object
    """Whose it is."""
    prompt: int
    target: int
    """Tokens after which it ends."""
    generated: int = 0
    """Tokens it had emitted, known when it has ended or was taken off."""
    preempted: int = 0
    """How often it was preempted."""
    known: int = 0
    """Prompt and emitted tokens, while it is not decoding."""
    computed: int = 0
    """While it is not decoding."""
    base: int | None = None
    """While it decodes: computed tokens less the number of the step."""
    last_step: int = -1


@dataclass(frozen=True, slots=True)
class Settled:
    """What came of the steps that are over: who emitted the first token (again, after a preemption), who ended."""

    started: list[Sequence]
    finished: list[Sequence]


@dataclass(frozen=True, slots=True)
class Seen:
    """What an engine exports of itself."""

    used_blocks: int
    running: int
    waiting: int
    preemptions: int
    steps: int
    """That are over."""


class Engine(Protocol):
    """An engine that is driven: told of comings and goings as they happen, and asked when its `due_s` has come."""

    due_s: float
    """When the present steps are over; never while it is idle. May come nearer with each `add` and `abort`."""

    def seen(self, now_s: float) -> Seen: ...

    def held_block_s(self, now_s: float) -> float:
        """Blocks held by sequences, times seconds, until now; between two decisions as if they grew evenly."""
        ...

    def add(self, sequence: Sequence, now_s: float) -> None:
        """Put it in line; it is looked at when the step in progress is over."""
        ...

    def abort(self, sequence: Sequence, now_s: float) -> None:
        """Drop it, when the step in progress is over; nothing if it is not here."""
        ...

    def generated(self, sequence: Sequence, now_s: float) -> int:
        """Tokens it has emitted by now."""
        ...

    def settle(self) -> Settled:
        """It is `due_s`: end the present steps and begin the next ones."""
        ...


def accepts_sizes(sizes: EngineSizes) -> bool:
    """Whether `LeapingEngine` may stand for an engine of these sizes."""
    return sizes.max_num_seqs < sizes.max_num_batched_tokens
