"""How a model's layers lie in the blocks of one GPU, whatever memory there is for them.

With pipeline parallelism each stage has its own layers; what matters is the stage with the most to hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvgate_policies.capacity_dtypes import (
    CapacityError,
    resolve_dtype,
    resolve_kv_dtype,
    state_bytes,
    token_bytes,
)
from kvgate_policies.capacity_groups import (
    Group,
    Page,
    group_layers,
    grows_evenly,
    hybrid_block_tokens,
)
from kvgate_policies.capacity_setup import block_size_of, check_setup
from kvgate_policies.kv_groups import EVERY_TOKEN
from kvgate_policies.model_shape import Kind, ModelShapeError, only

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvgate_policies.capacity_setup import Setup
    from kvgate_policies.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class Layout:
    """Layers in blocks."""

    kv_dtype: str
    block_size: int
    per_token: list[int]
    """Bytes, layer by layer."""
    pages: tuple[Page, ...]
    groups: tuple[Group, ...]
    stages: list[frozenset[int]]

    @property
    def block_bytes(self) -> int:
        return max(_block_bytes(self.groups, self.pages, stage) for stage in self.stages)

    @property
    def token_bytes(self) -> int:
        return _fullest(self.per_token, self.stages)

    @property
    def token_bytes_long(self) -> int:
        return _fullest(_kept_to_the_end(self.pages, self.per_token), self.stages)

    def sequence_bytes(self, tokens: int, blocks: int, context_parallel: int) -> int:
        if grows_evenly(self.groups):
            return self.token_bytes * -(-tokens // context_parallel)
        return blocks * self.block_bytes


def lay_out(setup: Setup) -> Layout:
    """Raises CapacityError or ModelShapeError."""
    shape = setup.shape.with_drafts() if setup.draft_tokens else setup.shape
    check_setup(setup, shape)
    kv_dtype = resolve_kv_dtype(shape, setup.kv_dtype, setup.dtype)
    per_token = [token_bytes(layer, kv_dtype, setup.tensor_parallel) for layer in shape.layers]
    block_size, wanted = _pages(setup, shape, per_token)
    pages, groups = group_layers(wanted)
    return Layout(kv_dtype, block_size, per_token, pages, groups, _stages(shape, setup.pipeline_parallel))


def _pages(setup: Setup, shape: ModelShape, per_token: list[int]) -> tuple[int, list[Page]]:
    """The block size, and what each layer writes into a block."""
    states = _states(setup, shape)
    attention = max((size for size in per_token if size), default=0)
    latent = bool(only(shape.layers, Kind.LATENT))
    tokens = hybrid_block_tokens(block_size_of(setup), attention, max(states), latent=latent)
    pages = [
        Page(layer.kind, size * tokens or state, tokens if size else 0, layer.window)
        for layer, size, state in zip(shape.layers, per_token, states, strict=True)
    ]
    return tokens, pages


def _states(setup: Setup, shape: ModelShape) -> list[int]:
    dtype = resolve_dtype(shape, setup.dtype)
    try:
        return [
            state_bytes(layer, dtype, setup.tensor_parallel, setup.draft_tokens) for layer in shape.layers
        ]
    except ModelShapeError as error:
        raise CapacityError(f"--tp {setup.tensor_parallel}: {error}") from error


def _kept_to_the_end(pages: Iterable[Page], per_token: list[int]) -> list[int]:
    return [size if page.kind in EVERY_TOKEN else 0 for page, size in zip(pages, per_token, strict=True)]


def _stages(shape: ModelShape, parallel: int) -> list[frozenset[int]]:
    """Positions of the KV layers of each pipeline stage; draft layers are on the last one."""
    ends = _stage_ends(shape.depth, parallel)
    stages: list[set[int]] = [set() for _ in ends]
    for position, layer in enumerate(shape.layers):
        stage = next((number for number, end in enumerate(ends) if layer.index < end), len(ends) - 1)
        stages[stage].add(position)
    return [frozenset(stage) for stage in stages]


def _stage_ends(depth: int, parallel: int) -> list[int]:
    """Where each stage ends: evenly, what is left over goes to the stages before the last, from behind.

    Source: vLLM 0.32, `get_pp_indices`.
    """
    sizes = [depth // parallel] * parallel
    for extra in range(depth % parallel):
        sizes[-2 - extra] += 1
    return [sum(sizes[: stage + 1]) for stage in range(parallel)]


def _block_bytes(groups: tuple[Group, ...], pages: tuple[Page, ...], stage: frozenset[int]) -> int:
    """Bytes of a block on one stage: the pages of its layers in the largest group."""
    return max(sum(pages[member].bytes for member in group.members if member in stage) for group in groups)


def _fullest(sizes: list[int], stages: list[frozenset[int]]) -> int:
    return max(sum(sizes[position] for position in stage) for stage in stages)
