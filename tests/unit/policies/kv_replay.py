"""A sequence on an engine with several KV groups, step by step: what is freed, what is allocated, what is held.

It follows the rules of each manager of vLLM 0.32 one step at a time, with a step in flight or none, and knows no bound.
The prices are held against it, and it is held against the blocks of vLLM's own KV cache manager.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvgate_policies.kv_groups import EVERY_TOKEN, KVGroup
from kvgate_policies.model_shape import Kind
from kvgate_policies.types import EngineShape


@dataclass
class Table:
    """The block table of one sequence in one group: the places that hold a block."""

    group: KVGroup
    shape: EngineShape
    held: set[int] = field(default_factory=set)
    length: int = 0

    def step(self, computed: int, processed: int, tokens: int, ahead: int) -> None:
        if self.group.kind is Kind.CROSS:
            self.held = set(range(-(-self.group.window // self.group.block_size)))
        elif self.group.kind is Kind.STATE:
            self._step_state(computed, processed, tokens)
        else:
            self._drop(self._skipped(processed) // self.group.block_size)
            slots = min(computed + tokens + ahead, self.shape.max_model_len)
            self._extend(-(-slots // self.group.block_size))

    def _skipped(self, processed: int) -> int:
        window = self.group.window
        if self.group.kind is Kind.SLIDING:
            return max(processed - window + 1, 0)
        return processed // window * window if self.group.kind is Kind.CHUNKED else 0

    def _step_state(self, computed: int, processed: int, tokens: int) -> None:
        if not self.shape.prefix_caching:
            self.held = {0}
            return
        size = self.group.block_size
        self._drop(max(processed - 1, 0) // size)
        needed = -(-(computed + tokens) // size)
        if needed > self.length:
            self.length = needed
            self.held.add(needed - 1)  # those in between are null blocks

    def _drop(self, before: int) -> None:
        self.held = {place for place in self.held if place >= before}

    def _extend(self, upto: int) -> None:
        self.held |= set(range(self.length, upto))
        self.length = max(self.length, upto)


@dataclass(frozen=True)
class Held:
    """Blocks of one sequence, all groups together."""

    gate: int
    """Wanted free at admission."""
    after_prefill: int
    """By the step that computes the end of the prompt."""
    reading: int
    """At the most, until the first token is out and the step after that is scheduled."""
    decoding: int
    """At the most, afterwards."""
    end: int

    @property
    def peak(self) -> int:
        return max(self.reading, self.decoding)


def replay(shape: EngineShape, prompt: int, output: int, chunk: Callable[[], int], *, in_flight: int) -> Held:
    """A prompt read in chunks, then token by token; `in_flight` steps are not settled when the next is scheduled."""
    tables = [Table(group, shape) for group in shape.groups for _ in range(group.count)]
    drafts = shape.speculative_tokens
    computed, flying = 0, list[int]()

    def step(tokens: int, refused: int = 0) -> int:
        nonlocal computed
        for table in tables:
            table.step(computed, computed - sum(flying), tokens + refused, drafts)
        computed += tokens
        flying.append(tokens)
        del flying[: max(len(flying) - in_flight, 0)]
        return sum(len(table.held) for table in tables)

    reading = after_prefill = 0
    while computed < prompt:
        after_prefill = step(min(chunk(), prompt - computed))
        reading = max(reading, after_prefill)
    decoding, end = 0, after_prefill
    for generated in range(1, output):
        if computed + 1 > shape.max_model_len - 1:
            break
        end = step(1, refused=drafts)  # which are computed, too: the next step starts one token on
        if generated <= in_flight:
            reading = max(reading, end)
        else:
            decoding = max(decoding, end)
    return Held(gate(shape, prompt), after_prefill, reading, decoding, end)


def gate(shape: EngineShape, prompt: int) -> int:
    return sum(group.count * _gate(shape, group, prompt) for group in shape.groups)


def _gate(shape: EngineShape, group: KVGroup, prompt: int) -> int:
    blocks = -(-prompt // group.block_size)
    flying, longest = shape.in_flight_tokens, shape.max_model_len
    if group.kind in EVERY_TOKEN:
        return blocks
    if group.kind is Kind.SLIDING:
        return min(blocks, -(-min(group.window - 1 + flying, longest) // group.block_size) + 1)
    if group.kind is Kind.CHUNKED:
        return min(blocks, -(-min(group.window + flying, longest) // group.block_size))
    return 1 if group.kind is Kind.STATE else -(-group.window // group.block_size)
