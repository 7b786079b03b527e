"""The KV cache of one engine as its scheduler uses it: sequences on one side, the block pool on the other.

One KV group, full attention: T tokens take `ceil(T / block_size)` blocks, kept until the sequence ends or is
preempted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate_policies.engine_model_blocks import BlockPool

if TYPE_CHECKING:
    from kvgate_policies.engine_model_sequence import Sequence


class KVCache:
    """Keeps `Sequence.blocks` and `Sequence.labelled` in step with the pool; nobody else writes them."""

    def __init__(self, *, num_gpu_blocks: int, block_size: int, prefix_caching: bool) -> None:
        self.pool = BlockPool(num_gpu_blocks)
        self.block_size = block_size
        self.prefix_caching = prefix_caching

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def find_prefix(self, sequence: Sequence) -> list[int]:
        """The longest cached beginning, in whole blocks; the last known token is always computed again."""
        hits: list[int] = []
        if not self.prefix_caching:
            return hits
        for index in range((sequence.known - 1) // self.block_size):
            block = self.pool.find(sequence.key(index, self.block_size))
            if block is None:
                break
            hits.append(block)
        return hits

    def fits_whole(self, sequence: Sequence, hits: list[int], *, reserve: int) -> bool:
        """Whether all known tokens fit now, `reserve` blocks left; a hit that nobody holds costs a block."""
        fresh = self.blocks(sequence.known) - len(hits)
        return fresh + self.pool.free_among(hits) <= self.pool.free - reserve

    def start(self, sequence: Sequence, hits: list[int]) -> None:
        """Begin with what the prefix cache has."""
        self.pool.take(hits)
        sequence.blocks = hits
        sequence.labelled = len(hits)
        sequence.computed = len(hits) * self.block_size

    def extend(self, sequence: Sequence, tokens: int) -> bool:
        """Blocks for the next `tokens`. False, and nothing changed: not enough are free."""
        upto = sequence.computed + tokens
        missing = self.blocks(upto) - len(sequence.blocks)
        if missing > self.pool.free:
            return False
        if missing > 0:
            sequence.blocks += self.pool.allocate(missing)
        if self.prefix_caching:
            self._label(sequence, upto // self.block_size)
        return True

    def _label(self, sequence: Sequence, full: int) -> None:
        """Findable from allocation on, as in vLLM: siblings admitted in one step share their prompt."""
        for index in range(sequence.labelled, full):
            self.pool.label(sequence.blocks[index], sequence.key(index, self.block_size))
        sequence.labelled = max(sequence.labelled, full)

    def release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.labelled = 0
