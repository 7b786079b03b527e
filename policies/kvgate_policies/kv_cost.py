"""How many KV blocks, sequence slots and prompt tokens does a request take from one engine?

The unit is the block of one engine. Rules, for P prompt tokens, M output tokens, block size bs and a
`max_model_len` of L:

1. A sequence occupies `min(P + M - 1, L)` token slots at its end: the KV of the last sampled token is never
   written. In blocks that is rounded up, `ceil(slots / bs)`.
2. Speculative decoding with K draft tokens needs `ceil((2K + 1) / bs)` blocks more on every step (K drafts
   and K + 1 of look-ahead); vLLM clips both at L, so the whole never exceeds `ceil(L / bs)`.
3. `n` sequences of one prompt share its full blocks if the engine caches prefixes, except the block of the
   last prompt token, which is always computed anew: `s + n * (peak - s)` with `s = floor((P - 1) / bs)`.
4. The prompts of a list share nothing that could be relied on: their costs are added up.
5. Where a model has KV groups that are not described, each sequence costs what the largest would.

The peak is reserved, not the present use: then the engine never has to preempt. Source: vLLM's own block
accounting, `KVCacheManager.allocate_slots` (slots) and `get_max_tokens` (M); reproduced block for block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kvgate_policies.types import ZERO_COST, EngineLimits, EngineShape, KVCost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class _Group(Protocol):
    """The rule of one KV group: what a sequence holds in it. A model's blocks are the sum over its groups."""

    def peak(self, tokens: int) -> int:
        """Blocks at the most, on the way to `tokens` slots."""
        ...

    def shared(self, prompt_tokens: int) -> int:
        """Blocks that further sequences of the same prompt do not need again."""
        ...


@dataclass(frozen=True, slots=True)
class _FullAttention:
    """Every token keeps its slot to the end (rules 1 to 3)."""

    shape: EngineShape

    def peak(self, tokens: int) -> int:
        whole = _ceil_div(self.shape.max_model_len, self.shape.block_size)
        drafts = self.shape.speculative_tokens
        ahead = _ceil_div(2 * drafts + 1, self.shape.block_size) if drafts else 0
        return min(_ceil_div(tokens, self.shape.block_size) + ahead, whole)

    def shared(self, prompt_tokens: int) -> int:
        if not self.shape.prefix_caching:
            return 0
        kept = min(prompt_tokens, self.shape.max_model_len)
        return max(kept - 1, 0) // self.shape.block_size


@dataclass(frozen=True, slots=True)
class _Opaque:
    """Groups nobody described: always the most a sequence can hold (rule 5)."""

    blocks: int

    def peak(self, tokens: int) -> int:  # noqa: ARG002 - the same for every length
        return self.blocks

    def shared(self, prompt_tokens: int) -> int:  # noqa: ARG002 - nothing is known to be shared
        return 0


def blocks_of(shape: EngineShape, tokens: int) -> int:
    """KV blocks of one sequence that has grown to `tokens` slots, a draft's look-ahead included."""
    return sum(group.peak(tokens) for group in _groups(shape))


def output_tokens(shape: EngineShape, prompt_tokens: int, asked: int) -> int:
    """Output tokens the engine would generate at most: `min(L - P, asked)`, but at least 1.

    A prompt that fills the window, or a limit below 1, is refused by the engine; it is priced as one token.
    """
    return max(min(shape.max_model_len - prompt_tokens, asked), 1)


def price(shape: EngineShape, prompts: Sequence[int], max_tokens: int, n: int) -> KVCost:
    """The cost at the peak of `n` sequences for each prompt, with at most `max_tokens` output tokens each.

    `prompts` are prompt lengths in tokens; `max_tokens` is clamped to what each one leaves of the window. A
    prompt at or beyond `max_model_len` is priced at the full window. No prompts cost nothing.

    Raises ValueError for n < 1 or a negative prompt length.
    """
    if n < 1:
        raise ValueError(f"n is {n}: a prompt has at least one sequence")
    return sum((_price_one(shape, prompt_tokens, max_tokens, n) for prompt_tokens in prompts), ZERO_COST)


def price_pooling(shape: EngineShape, prompts: Sequence[int]) -> KVCost:
    """The cost of embedding, scoring or classifying: each prompt's own blocks, for one pass."""
    return price(shape, prompts, max_tokens=1, n=1)


def fits_empty(cost: KVCost, limits: EngineLimits) -> bool:
    """Whether the engine's whole capacity covers the cost.

    The prefill bound is left out: one request may exceed it when nothing else is outstanding.
    """
    return cost.blocks <= limits.blocks and cost.seqs <= limits.seqs


def never_fits(costs: Mapping[EngineShape, KVCost], engines: Iterable[EngineLimits]) -> bool:
    """Whether the request is larger than the whole of every engine it is priced for.

    Asked engine by engine, never of the pool's sum; those that take no work now count, they may come back.
    False when it is priced for none of them, since nothing is known then.
    """
    priced = [(costs[limits.shape], limits) for limits in engines if limits.shape in costs]
    return bool(priced) and not any(fits_empty(cost, limits) for cost, limits in priced)


def _groups(shape: EngineShape) -> tuple[_Group, ...]:
    if shape.blocks_opaque is not None:
        return (_Opaque(shape.blocks_opaque),)
    return (_FullAttention(shape),)


def _price_one(shape: EngineShape, prompt_tokens: int, max_tokens: int, n: int) -> KVCost:
    if prompt_tokens < 0:
        raise ValueError(f"a prompt of {prompt_tokens} tokens")
    wanted = prompt_tokens + output_tokens(shape, prompt_tokens, max_tokens) - 1
    slots = min(wanted, shape.max_model_len)
    blocks = sum(_family_blocks(group, prompt_tokens, slots, n) for group in _groups(shape))
    return KVCost(blocks=blocks, seqs=n, prefill_tokens=prompt_tokens)


def _family_blocks(group: _Group, prompt_tokens: int, slots: int, n: int) -> int:
    """Blocks of `n` sequences that grew from one prompt."""
    peak = group.peak(slots)
    if n == 1:
        return peak
    shared = group.shared(prompt_tokens)
    return shared + n * (peak - shared)


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
