"""Engines that an operator has drained, kept where a worker that is started later finds them.

Draining is a matter of each worker; one that takes another's place must not give work to an engine that is
being taken down. The memory is made by the parent before it forks and shared by all. Only the front writes.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from collections.abc import Iterable

BYTES = 256 * 1024
"""Some thousand engine ids."""
READS_MAX = 3
"""A read that falls into a write is repeated; writes are an operator's clicks apart."""
_HEAD = struct.Struct("<II")
"""Length and checksum of what follows."""


class DrainedEngines:
    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, BYTES)

    def read(self) -> frozenset[str]:
        """The ids as last written; none before, and none if what is there makes no sense."""
        for _ in range(READS_MAX):
            length, checksum = _HEAD.unpack_from(self._memory)
            text = self._memory[_HEAD.size : _HEAD.size + length]
            if length and zlib.crc32(text) == checksum:
                return frozenset(json.loads(text))
        return frozenset()

    def write(self, engine_ids: Iterable[str]) -> None:
        """Raises ValueError for more than fit."""
        text = json.dumps(sorted(engine_ids)).encode()
        if _HEAD.size + len(text) > BYTES:
            raise ValueError(f"the drained engines' ids take more than {BYTES} bytes")
        self._memory[_HEAD.size : _HEAD.size + len(text)] = text
        _HEAD.pack_into(self._memory, 0, len(text), zlib.crc32(text))

    def drain(self, engine_id: str) -> None:
        self.write(self.read() | {engine_id})

    def undrain(self, engine_id: str) -> None:
        """Of a whole backend's URL, all its ranks."""
        self.write(one for one in self.read() if engine_id not in {one, one.partition("#")[0]})
