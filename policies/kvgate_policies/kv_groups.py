"""How many KV blocks does a sequence hold in one group of layers, while its prompt is read and afterwards?

vLLM keeps the layers of a model in groups that draw from one pool of blocks; a request takes the sum over the
groups. The rules, for T token slots, blocks of b tokens, a window of w, L = `max_model_len`, K draft tokens, and F
tokens in flight (scheduled and not settled yet; vLLM holds what they still look at):

| Group | While the prompt is read | From the first token on |
|---|---|---|
| full, latent, index | `ceil(T / b)`, kept to the end | the same |
| sliding window | `ceil(T / b)`, at most `ceil(min(w − 1 + F, L) / b) + 1` | at most `ceil((w − 1) / b) + 2` |
| chunk | `ceil(T / b)`, at most `ceil(min(w + F, L) / b)` | at most `ceil(w / b) + 2` |
| state, with prefix caching | `min(ceil(T / b) + 1, 3) + K` and its checkpoint | `min(ceil(T / b), 2) + K` |
| state, without | `1 + K` | `1 + K` |
| cross attention | `ceil(w / b)`, w being the encoder's tokens | the same |

Drafts add `ceil((2K + 1) / b)` blocks to attention, up to `ceil(L / b)`. A window may begin in the middle of a block
(the + 1) and lets go of a block one step late (the other). A state that is cached at block boundaries exists twice
while one is crossed, and three times while chunks of a prompt are in flight.

Source: vLLM 0.32, the managers in `single_type_kv_cache_manager` and `max_admission_blocks_per_request` of the specs.
At admission vLLM wants the first column free for the whole prompt at once, whatever it will hold of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvgate_policies.model_shape import Kind

EVERY_TOKEN = frozenset({Kind.FULL, Kind.LATENT, Kind.INDEX})
"""Kinds that keep every token to the end."""
WINDOWED = frozenset({Kind.SLIDING, Kind.CHUNKED})
"""Kinds that hold more while a prompt is read than afterwards."""
STATES_IN_FLIGHT = 3
"""Of a cached state: the one that is settled, and one of each of two steps in flight."""
STATES_DECODING = 2
"""While the end of a block is crossed."""


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Groups of layers with one rule."""

    kind: Kind = Kind.FULL
    block_size: int = 16
    """Tokens of a block in this group."""
    window: int = 0
    """Tokens; 0 where the kind has none. Of cross attention the encoder's."""
    count: int = 1
    """How many groups are alike."""
    checkpoints: int = 0
    """Further blocks of a state, for its copies within a prompt."""


class Serving(Protocol):
    """What the blocks of a sequence depend on, besides its length and the groups."""

    @property
    def max_model_len(self) -> int: ...

    @property
    def prefix_caching(self) -> bool: ...

    @property
    def speculative_tokens(self) -> int: ...

    @property
    def in_flight_tokens(self) -> int: ...


def prefill_blocks(group: KVGroup, tokens: int, serving: Serving) -> int:
    """Blocks of one sequence in each of these groups at the most, until `tokens` slots of its prompt are computed.

    As many as vLLM asks for at admission, or more where it takes more afterwards.
    """
    if group.kind is Kind.STATE:
        chunks = min(ceil_div(tokens, group.block_size) + 1, STATES_IN_FLIGHT)
        return _states(chunks + group.checkpoints, serving)
    if group.kind is Kind.CROSS:
        return ceil_div(group.window, group.block_size)
    # A block that the end of a chunk cuts: vLLM's own bound does not count it.
    cut = group.kind is Kind.CHUNKED and group.window % group.block_size > 0
    most = full_window_blocks(group, serving) + _ahead(group, serving) + cut
    return min(_grown(group, tokens, serving), most)


def decode_blocks(group: KVGroup, tokens: int, serving: Serving) -> int:
    """Blocks of one sequence in each of these groups at the most, from its first token until it has `tokens` slots."""
    if group.kind is Kind.STATE:
        return _states(min(ceil_div(tokens, group.block_size), STATES_DECODING), serving)
    blocks = prefill_blocks(group, tokens, serving)
    if group.kind not in WINDOWED:
        return blocks
    # A window counts the next token, too.
    back = group.window - 1 if group.kind is Kind.SLIDING else group.window
    return min(blocks, ceil_div(back, group.block_size) + 2 + _ahead(group, serving))


def full_window_blocks(group: KVGroup, serving: Serving) -> int:
    """Blocks that vLLM counts for a sequence of `max_model_len` in each of these groups: at its start, in its log, and
    in `kv_cache_max_concurrency`.
    """
    limit, flying = serving.max_model_len, serving.in_flight_tokens
    if group.kind is Kind.SLIDING:
        return ceil_div(min(group.window - 1 + flying, limit), group.block_size) + 1
    if group.kind is Kind.CHUNKED:
        return ceil_div(min(group.window + flying, limit), group.block_size)
    if group.kind is Kind.STATE:
        return _states(STATES_DECODING + group.checkpoints, serving)
    if group.kind is Kind.CROSS:
        return ceil_div(group.window, group.block_size)
    return ceil_div(limit, group.block_size)


def _grown(group: KVGroup, tokens: int, serving: Serving) -> int:
    """Blocks of all tokens, a draft's look-ahead included; the engine clips both at the window of the model."""
    whole = ceil_div(serving.max_model_len, group.block_size)
    return min(ceil_div(tokens, group.block_size) + _ahead(group, serving), whole)


def _ahead(group: KVGroup, serving: Serving) -> int:
    drafts = serving.speculative_tokens
    return ceil_div(2 * drafts + 1, group.block_size) if drafts else 0


def _states(cached: int, serving: Serving) -> int:
    return (cached if serving.prefix_caching else 1) + serving.speculative_tokens


def ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
