"""Requests that begin alike go to the same engine, as far as there is room: it has that beginning in its cache.

What a prompt begins with is read from the body: tools, instructions and messages as they were written, in the order in
which chat templates put them. Hashes of it are kept, in memory, of this process alone; `kvgate_policies.affinity` says
which, and why.
"""

from __future__ import annotations

from secrets import token_bytes
from typing import TYPE_CHECKING

import msgspec

from kvgate_policies.affinity import Affinity, prefixes
from kvgate_policies.types import Endpoint

if TYPE_CHECKING:
    from kvgate.engines.base import Engines
    from kvgate_policies.types import InferenceRequest

CACHING = frozenset(Endpoint) - {Endpoint.POOLING, Endpoint.AUDIO}
"""Endpoints whose prompts are found again in an engine's cache."""
SALT_BYTES = 16
_NOTHING = msgspec.Raw(b"")


class _Beginning(msgspec.Struct):
    """The parts of a body that decide on the beginning of its prompt, as they are written. Each endpoint has some."""

    cache_salt: msgspec.Raw = _NOTHING
    tools: msgspec.Raw = _NOTHING
    system: msgspec.Raw = _NOTHING
    instructions: msgspec.Raw = _NOTHING
    previous_response_id: msgspec.Raw = _NOTHING
    messages: msgspec.Raw = _NOTHING
    prompt: msgspec.Raw = _NOTHING
    input: msgspec.Raw = _NOTHING
    token_ids: msgspec.Raw = _NOTHING


_DECODER = msgspec.json.Decoder(_Beginning)


class PrefixAffinity:
    """What one pool remembers. `salt` is chosen by chance unless a test says it."""

    def __init__(self, engines: Engines, *, on: bool, salt: bytes | None = None) -> None:
        self._engines = engines
        self._on = on
        self._salt = token_bytes(SALT_BYTES) if salt is None else salt
        self._served = Affinity()

    def hashes(self, request: InferenceRequest, body: bytes) -> tuple[int, ...]:
        """What the prompt begins with; () where nobody asks: off, no cache of prefixes, or no choice of engines."""
        if not self._on or request.endpoint not in CACHING or len(self._engines.available()) < 2:
            return ()
        if not any(shape.prefix_caching for shape in self._engines.shapes()):
            return ()
        try:
            read = _DECODER.decode(body)
        except msgspec.DecodeError:
            return ()  # the engine will say what is wrong with it
        return prefixes(self._salt, _parts(request, read))

    def prefer(self, hashes: tuple[int, ...]) -> tuple[str, ...]:
        """Engines that read such a beginning lately, the best first."""
        return self._served.prefer(hashes)

    def learn(self, hashes: tuple[int, ...], engine_id: str) -> None:
        """The engine has read it: its first token came."""
        self._served.learn(hashes, engine_id)


def _parts(request: InferenceRequest, read: _Beginning) -> list[bytes | memoryview]:
    """What was left out leaves an empty place; an adapter is another model, and has a cache of its own."""
    fields = (getattr(read, name) for name in _Beginning.__struct_fields__)
    written = [memoryview(field) for field in fields]
    last = next((place for place in range(len(written) - 1, -1, -1) if written[place].nbytes), 0)
    return [(request.model or "").encode(), *written[: last + 1]]
