"""How does vLLM put a model's layers into groups that share one pool of blocks?

All groups draw block ids from one pool, so a block must have the same size for each: that of the largest group.

1. Layers that need the same token slots (all full or latent attention, or one window everywhere): one group.
2. Otherwise the layers' pages are made equal first: a smaller page takes proportionally more tokens, or, where
   that doesn't come out even and for recurrent states, is padded.
3. Then layers of one kind are cut into groups of g layers, g being the count of the rarest kind, or that of the
   commonest if that is less than half as much again. A block of a group holds the pages of its layers.
4. With recurrent states the block size is raised first, until a page of attention holds a whole state.
5. Chunked attention switches this off in vLLM: then windows are allocated as full attention.

How many blocks a sequence holds in a group is said by `kv_groups`, for the planner as for the price of a request.

Source: vLLM 0.32, `get_kv_cache_groups`, `unify_kv_cache_spec_page_size` and `_align_hybrid_block_size`; held against
that code by the tests in `tests/vllm`.
Mixed page sizes in a block-outermost memory layout are grouped differently there and not described here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvgate_policies.capacity_dtypes import CapacityError
from kvgate_policies.kv_groups import (
    EVERY_TOKEN,
    KVGroup,
    ceil_div,
    decode_blocks,
    full_window_blocks,
    prefill_blocks,
)
from kvgate_policies.model_shape import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

KERNEL_BLOCK = 16
"""Tokens: what attention kernels work in, and what a raised block size is a multiple of."""
LATENT_KERNEL_BLOCK = 128
"""The same for latent attention beside recurrent states."""
PADDING_LIMIT = 1.5
"""Rule 3: below this ratio of the commonest kind to the rarest, groups are padded instead of split."""


@dataclass(frozen=True, slots=True)
class Page:
    """What one layer writes into one block."""

    kind: Kind
    bytes: int
    tokens: int
    """Of a block; 0 for a state, which is not divided."""
    window: int | None = None

    @property
    def slots(self) -> object:
        """Equal for layers that need the same token slots."""
        return "every token" if self.kind in EVERY_TOKEN else (self.kind, self.window)


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a block table."""

    page: Page
    """Of each layer; for layers of several sizes, of the first."""
    members: tuple[int, ...]
    """Positions of its layers in the model's list."""

    @property
    def kind(self) -> Kind:
        return self.page.kind


@dataclass(frozen=True, slots=True)
class Serving:
    """What the blocks of a sequence depend on, besides its length."""

    max_model_len: int
    in_flight_tokens: int
    """Tokens scheduled and not yet settled: what a window holds on top of itself during prefill."""
    draft_tokens: int = 0
    prefix_caching: bool = True
    context_parallel: int = 1
    """GPUs over which the tokens of a sequence are dealt out (decode context parallelism)."""

    @property
    def speculative_tokens(self) -> int:
        return self.draft_tokens


def hybrid_block_tokens(block_tokens: int, token_bytes: int, state_bytes: int, *, latent: bool) -> int:
    """The block size in tokens, raised until `token_bytes` of attention for each hold a whole state (rule 4)."""
    if not state_bytes or not token_bytes:
        return block_tokens
    step = max(KERNEL_BLOCK, block_tokens, LATENT_KERNEL_BLOCK if latent else 0)
    raised = step * ceil_div(state_bytes, step * token_bytes)
    return max(block_tokens, KERNEL_BLOCK * ceil_div(raised, KERNEL_BLOCK))


def group_layers(pages: Sequence[Page]) -> tuple[tuple[Page, ...], tuple[Group, ...]]:
    """The pages as they are allocated, and the groups. Raises CapacityError for pages that can't be made equal."""
    pages = _windows_dissolved(pages)
    if len({page.slots for page in pages}) <= 1:
        return tuple(pages), (Group(pages[0], tuple(range(len(pages)))),) if pages else ()
    pages = _equal_pages(pages)
    counts = Counter(pages)
    size = min(counts.values())
    if max(counts.values()) < size * PADDING_LIMIT:
        size = max(counts.values())
    groups: list[Group] = []
    for page, count in counts.items():
        members = [position for position, one in enumerate(pages) if one == page]
        parts = ceil_div(count, size)
        groups.extend(Group(page, tuple(members[part::parts])) for part in range(parts))
    return tuple(pages), tuple(groups)


def _windows_dissolved(pages: Sequence[Page]) -> Sequence[Page]:
    """Rule 5."""
    if not any(page.kind is Kind.CHUNKED for page in pages) or not any(p.kind in EVERY_TOKEN for p in pages):
        return pages
    windowed = {Kind.CHUNKED, Kind.SLIDING}
    return [replace(p, kind=Kind.FULL, window=None) if p.kind in windowed else p for p in pages]


def _equal_pages(pages: Sequence[Page]) -> list[Page]:
    """Rule 2."""
    largest = max(page.bytes for page in pages)
    return [_enlarged(page, largest) for page in pages]


def _enlarged(page: Page, largest: int) -> Page:
    if page.kind is not Kind.STATE and largest % page.bytes == 0:
        return replace(page, bytes=largest, tokens=page.tokens * (largest // page.bytes))
    if page.kind in {Kind.LATENT, Kind.INDEX}:
        raise CapacityError(
            f"a page of {page.bytes} bytes of latent attention can't be padded to one of {largest} bytes beside "
            "it: vLLM 0.32 refuses this model"
        )
    return replace(page, bytes=largest)


def grows_evenly(groups: Sequence[Group]) -> bool:
    """Whether the memory of a sequence simply grows with its tokens: one group, which keeps all of them."""
    return len(groups) == 1 and groups[0].kind in EVERY_TOKEN


def blocks_held(group: Group, tokens: int, serving: Serving) -> int:
    """Blocks of one sequence in this group at the most, on its way to `tokens` slots.

    Without the further states that it has for a step or two while its prompt is read: vLLM does not count them either.
    """
    rule = decode_blocks if group.kind is Kind.STATE else prefill_blocks
    return rule(kv_group(group, serving), tokens, serving)


def blocks_steady(group: Group, tokens: int, serving: Serving) -> int:
    """Blocks of one sequence of `tokens` slots in this group while it is decoding, token by token."""
    return decode_blocks(kv_group(group, serving), tokens, serving)


def blocks_bound(group: Group, serving: Serving) -> int:
    """Blocks that vLLM counts for a sequence of the whole window in this group, at admission and in its log."""
    return full_window_blocks(kv_group(group, serving), serving)


def kv_group(group: Group, serving: Serving) -> KVGroup:
    """The group as its rule sees it. A state is not divided: its block counts as one token."""
    tokens = (group.page.tokens or 1) * serving.context_parallel
    return KVGroup(group.kind, tokens, group.page.window or 0)
