"""Which engine has the beginning of this prompt in its cache, most likely? The one that served it last.

A prompt is known by hashes of its beginning, at several depths. For each of them the engines that served it are
remembered, the latest first; the deepest that is known says most. So a system prompt brings the requests of one
application together, and a conversation stays where it is, since each turn begins with all that came before.

1. Hashes have 64 bits and a salt; of the text nothing is kept, and nobody without the salt can look for one.
2. A beginning shorter than the first depth is not worth a fuller engine: reading it is a matter of milliseconds.
3. What is longest unused is forgotten first. A wrong answer costs a cache miss and nothing else: it is a wish, which
   `placement` follows within bounds.

The bytes are those of the request's body, not its tokens: the same beginning written in another way is another one.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

DEPTHS_BYTES = (256, 1024, 4096, 16_384, 65_536)
"""Four times as long each: about 60 to 16,000 tokens of English."""
ENTRIES_MAX = 10_000
"""Beginnings that are remembered, about 3 MB: 2,000 conversations of all depths, more than the caches of most pools."""
ENGINES_MAX = 4
"""Of one beginning: where one is too full, another may have it."""
HASH_BYTES = 8


def prefixes(salt: bytes, parts: Iterable[bytes | memoryview]) -> tuple[int, ...]:
    """The hashes of what the parts begin with, one after the other; the deepest first, () for a short prompt.

    A zero byte is set between them. Only the last one grows without becoming another beginning.
    """
    text = memoryview(b"\0".join(part[: DEPTHS_BYTES[-1]] for part in parts))
    running = blake2b(digest_size=HASH_BYTES, key=salt)
    found: list[int] = []
    done = 0
    for depth in DEPTHS_BYTES:
        if len(text) < depth:
            break
        running.update(text[done:depth])
        done = depth
        found.append(int.from_bytes(running.digest(), "big"))
    return tuple(reversed(found))


class Affinity:
    """Who served which beginnings: at most `entries_max` of them, and `ENGINES_MAX` engines of each."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._served: OrderedDict[int, tuple[str, ...]] = OrderedDict()
        """The least recently used first."""

    def __len__(self) -> int:
        return len(self._served)

    def prefer(self, hashes: Iterable[int]) -> tuple[str, ...]:
        """Engines that have most of it, the best first; () when none is known."""
        engines: dict[str, None] = {}
        for one in hashes:
            if one in self._served:
                self._served.move_to_end(one)
                engines |= dict.fromkeys(self._served[one])
        return tuple(engines)

    def learn(self, hashes: Iterable[int], engine_id: str) -> None:
        """An engine has read a prompt that begins so."""
        for one in hashes:
            before = self._served.pop(one, ())
            others = (engine for engine in before if engine != engine_id)
            self._served[one] = (engine_id, *others)[:ENGINES_MAX]
        while len(self._served) > self._entries_max:
            self._served.popitem(last=False)
