"""What the engine model is asked and what it answers: frozen values, no behaviour beyond their own sums.

A *step* is one iteration of the scheduler: one forward pass over all scheduled sequences. A sequence is one
prompt with one output; `n` outputs of one prompt are n sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable


class SchedulingPolicy(StrEnum):
    """Order of the waiting line and choice of the preempted one (`--scheduling-policy`)."""

    FCFS = "fcfs"
    PRIORITY = "priority"
    """Lower values sooner; the running one with the highest value is preempted first."""


class FinishReason(StrEnum):
    """Why a sequence ended by itself; an aborted one is simply gone."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class StepProfile:
    """How long a step takes: `step_s + decode·sequences + kv·tokens + prefill·tokens`.

    The constant is the cost of reading the weights, the second term sampling and scheduling per sequence, the
    third reading the KV cache, the fourth the arithmetic of prompt tokens.
    """

    name: str
    step_s: float
    decode_s_per_seq: float = 0.0
    kv_s_per_token: float = 0.0
    prefill_s_per_token: float = 0.0
    source: str = ""
    """Where the numbers come from: measured on what, or assumed."""

    def duration_s(self, *, decoding: int, kv_tokens: int, prefill_tokens: int) -> float:
        return (
            self.step_s
            + self.decode_s_per_seq * decoding
            + self.kv_s_per_token * kv_tokens
            + self.prefill_s_per_token * prefill_tokens
        )


INSTANT = StepProfile("instant", 0.0, source="no time at all: for tests that count steps")


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One sequence.

    What its prompt shares with others, for the prefix cache, is said in one of two ways: by the token ids, or
    by `prefix_key`, which stands for the content of the first `prefix_tokens` tokens. Without either the
    prompt is like no other.
    """

    id: str
    prompt_tokens: int
    max_tokens: int
    priority: int = 0
    stop_after: int | None = None
    """Tokens after which the model would end by itself; None: never (`ignore_eos`)."""
    token_ids: tuple[int, ...] | None = None
    prefix_key: Hashable | None = None
    prefix_tokens: int = 0

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.max_tokens < 1:
            raise ValueError(f"{self.id}: a sequence has at least one prompt token and one output token")
        if self.stop_after is not None and self.stop_after < 1:
            raise ValueError(f"{self.id}: stop_after is {self.stop_after}, but the first token always comes")
        if self.token_ids is not None and len(self.token_ids) != self.prompt_tokens:
            raise ValueError(
                f"{self.id}: {len(self.token_ids)} token ids for {self.prompt_tokens} prompt tokens"
            )
        if not 0 <= self.prefix_tokens <= self.prompt_tokens:
            raise ValueError(f"{self.id}: prefix_tokens {self.prefix_tokens} is outside the prompt")


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step. Ids are those of `SimRequest`; the order is the order of scheduling."""

    tokens: tuple[str, ...]
    """Sequences that emit one token each at the end of this step."""
    finished: tuple[tuple[str, FinishReason], ...]
    """Those of `tokens` that end with it; their blocks are free again."""
    preempted: tuple[str, ...]
    admitted: tuple[str, ...]
    """Sequences that left the waiting line, resumed ones included."""
    computed_tokens: int
    """Tokens whose KV was written in this step."""
    recomputed_tokens: int
    """The part of `computed_tokens` that had been computed before a preemption."""
    prompt_tokens: int
    """Prompt lengths of the sequences that emit their first token in this step."""
    kv_used: int
    """Blocks held during the step, before the finished ones gave theirs back."""
    running: int
    """Sequences in the running set during the step."""
    step_s: float


@dataclass(slots=True)
class EngineCounters:
    """Totals since the engine started. As in vLLM, `prompt_tokens` does not see recomputation."""

    steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    prefix_queries: int = 0
    """Tokens looked up in the prefix cache, at first admission only."""
    prefix_hits: int = 0
    admission_rejections: int = 0
    stopped: int = 0
    cut_at_length: int = 0
