"""The block pool of one engine: who holds which KV block, and what the free ones still contain.

A block is *held* while its reference count is above zero. A block that nobody holds is free, yet keeps its
content under its key until it is handed out again, least recently freed first: the prefix cache takes nothing
away from the capacity. Block 0 is the null block and never handed out.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence


class BlockPool:
    """Promises: `free + held == usable` at all times, and no block is handed out while it is held."""

    def __init__(self, num_gpu_blocks: int) -> None:
        if num_gpu_blocks < 2:
            raise ValueError(
                f"num_gpu_blocks is {num_gpu_blocks}: one is the null block, so at least 2 are needed"
            )
        self.usable = num_gpu_blocks - 1
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_gpu_blocks))
        self._references: list[int] = [0] * num_gpu_blocks
        self._key_of: dict[int, Hashable] = {}
        self._cached: dict[Hashable, dict[int, None]] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def held(self) -> int:
        return self.usable - len(self._free)

    def find(self, key: Hashable) -> int | None:
        """The block with this content, held or free; None when it was overwritten or never written."""
        blocks = self._cached.get(key)
        return next(iter(blocks)) if blocks else None

    def free_among(self, blocks: Iterable[int]) -> int:
        """How many of these nobody holds: taking them costs a free block each."""
        return sum(not self._references[block] for block in blocks)

    def take(self, blocks: Iterable[int]) -> None:
        """Hold blocks found in the cache."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """`count` free blocks, the least recently freed; what they contained is gone.

        Raises `ValueError` when fewer are free: the caller compares with `free` first.
        """
        if count > len(self._free):
            raise ValueError(f"{count} blocks asked for, {len(self._free)} are free")
        return [self._hand_out() for _ in range(count)]

    def _hand_out(self) -> int:
        block, _ = self._free.popitem(last=False)
        self._forget(block)
        self._references[block] = 1
        return block

    def _forget(self, block: int) -> None:
        key = self._key_of.pop(block, None)
        if key is None:
            return
        blocks = self._cached[key]
        del blocks[block]
        if not blocks:
            del self._cached[key]

    def label(self, block: int, key: Hashable) -> None:
        """Make a full block findable."""
        self._key_of[block] = key
        self._cached.setdefault(key, {})[block] = None

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of a sequence's blocks; the last are overwritten first: a prefix is worth more."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = None
