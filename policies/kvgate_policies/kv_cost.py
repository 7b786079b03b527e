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
5. A model with several KV groups costs the sum over them, by the rules of `kv_groups`, and the more of two: what
   its prompt of P takes while it is read, and what P + M - 1 slots take once it is generating. For windows the
   first is often the larger; it is over with the first token (`blocks_decoding`). Such groups share nothing
   among n sequences that could be relied on.
6. Where the groups are not described, each sequence costs what the largest would.

The peak is reserved, not the present use: then the engine never has to preempt. Source: vLLM's own block
accounting, `KVCacheManager.allocate_slots` (slots) and `get_max_tokens` (M); reproduced block for block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate_policies.kv_groups import EVERY_TOKEN, KVGroup, decode_blocks, prefill_blocks
from kvgate_policies.types import ZERO_COST, EngineLimits, EngineShape, KVCost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


STEPS_AHEAD = 2
"""Tokens that an engine makes room for before the first one is out, and what reading took is let go: one step is always
scheduled ahead, with pipeline parallelism another."""


def blocks_of(shape: EngineShape, tokens: int) -> int:
    """KV blocks of one sequence at the most, on its way to `tokens` slots, however many of them are its prompt's.

    A draft's look-ahead is included.
    """
    if shape.blocks_opaque is not None:
        return shape.blocks_opaque
    return sum(group.count * prefill_blocks(group, tokens, shape) for group in _groups(shape))


def blocks_after_prompt(shape: EngineShape, tokens: int) -> int:
    """KV blocks of one sequence at the most, from its first token until it has grown to `tokens` slots."""
    if shape.blocks_opaque is not None:
        return shape.blocks_opaque
    return sum(group.count * decode_blocks(group, tokens, shape) for group in _groups(shape))


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


def blocks_decoding(shape: EngineShape, prompts: Sequence[int], max_tokens: int, n: int) -> int:
    """The part of `price(…).blocks` that is still needed once the first token has come.

    Less than all of it only for one sequence alone: of several, others may still be reading.
    """
    if len(prompts) * n != 1:
        return price(shape, prompts, max_tokens, n).blocks
    return blocks_after_prompt(shape, _slots(shape, prompts[0], max_tokens))


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


def _groups(shape: EngineShape) -> tuple[KVGroup, ...]:
    return shape.groups or (KVGroup(block_size=shape.block_size),)


def _price_one(shape: EngineShape, prompt_tokens: int, max_tokens: int, n: int) -> KVCost:
    if prompt_tokens < 0:
        raise ValueError(f"a prompt of {prompt_tokens} tokens")
    slots = _slots(shape, prompt_tokens, max_tokens)
    reading = blocks_of(shape, min(prompt_tokens + STEPS_AHEAD, slots))
    peak = max(reading, blocks_after_prompt(shape, slots))
    shared = _shared(shape, prompt_tokens) if n > 1 else 0
    return KVCost(blocks=shared + n * (peak - shared), seqs=n, prefill_tokens=prompt_tokens)


def _slots(shape: EngineShape, prompt_tokens: int, max_tokens: int) -> int:
    """Token slots at the end of a sequence (rule 1)."""
    wanted = prompt_tokens + output_tokens(shape, prompt_tokens, max_tokens) - 1
    return min(wanted, shape.max_model_len)


def _shared(shape: EngineShape, prompt_tokens: int) -> int:
    """Blocks that further sequences of the same prompt do not need again (rules 3 and 5)."""
    groups = _groups(shape)
    if shape.blocks_opaque is not None or not shape.prefix_caching:
        return 0
    if not all(group.kind in EVERY_TOKEN for group in groups):
        return 0
    kept = max(min(prompt_tokens, shape.max_model_len) - 1, 0)
    return sum(group.count * (kept // group.block_size) for group in groups)
