"""Requests that begin alike and run on one engine reserve the KV blocks of that beginning once.

`kvgate_policies.sharing` says who has them in its reservation, and why that is safe; here is what a request begins
with, and who else of this process runs there. Nothing of a prompt is kept but hashes, as long as it runs.

Every request asks for room at its full price, and gives back what others hold already once it is granted, or with its
first token. One that has to wait is priced without what it would be lent on every engine that it may go to (`lending`).
A grant at such a price is good only if that is so when it is taken up; else the request, of which no engine has heard,
is queued again at its place. So at no time is less reserved than an engine holds.

Only what is known exactly takes part: one prompt with one sequence, whose token ids were sent, or found by a tokenizer
when they were counted (`tokens.ids`), on an engine that caches prefixes, with nothing in the body that would make the
engine read the prompt anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from secrets import token_bytes
from typing import TYPE_CHECKING, Protocol

import msgspec

from kvgate.admission.affinity import CACHING, SALT_BYTES
from kvgate.tokens.base import packed
from kvgate_policies.sharing import TOKEN_BYTES, Beginnings, Chain, Parts, Sharer, chain_of, shareable
from kvgate_policies.types import Endpoint, InferenceRequest

if TYPE_CHECKING:
    from kvgate.ledger.base import Grant
    from kvgate_policies.types import EngineShape, TokenCount

_NOTHING = msgspec.Raw(b"")
_NOT_SAID = frozenset((b"", b"null", b"false"))


class _Unlike(msgspec.Struct):
    """With any of these a prompt is not read from the cache, or is more than its token ids."""

    prompt_logprobs: msgspec.Raw = _NOTHING
    echo: msgspec.Raw = _NOTHING
    skip_reading_prefix_cache: msgspec.Raw = _NOTHING
    use_beam_search: msgspec.Raw = _NOTHING
    prompt_embeds: msgspec.Raw = _NOTHING
    features: msgspec.Raw = _NOTHING
    kv_transfer_params: msgspec.Raw = _NOTHING
    ec_transfer_params: msgspec.Raw = _NOTHING
    vllm_xargs: msgspec.Raw = _NOTHING
    extra_args: msgspec.Raw = _NOTHING

    @property
    def said(self) -> bool:
        return any(bytes(getattr(self, name)) not in _NOT_SAID for name in _Unlike.__struct_fields__)


class _Body(_Unlike):
    prompt: msgspec.Raw = _NOTHING
    token_ids: msgspec.Raw = _NOTHING
    cache_salt: msgspec.Raw = _NOTHING
    sampling_params: _Unlike | None = None


_BODY = msgspec.json.Decoder(_Body)
_ONE = msgspec.json.Decoder(list[int])
_LIST = msgspec.json.Decoder(list[list[int]])


Beginning = Mapping[int, Chain]
"""Of a prompt, for each block size of the engines."""


class Holder(Protocol):
    """What holds a grant."""

    def take_parts(self, parts: Parts) -> bool:
        """Reserve by these from now on; False where that is as much as before. `tell` is owed then."""
        ...

    async def tell(self) -> None:
        """Let the ledger know what is held."""
        ...


class Share(Sharer):
    """A request's part in what begins alike, on the engine of its grant. `joins` first, `leaves` last, each once.

    The calls decide at once and wait for nothing; they return those whose ledger is to be told, what grows first.
    """

    def __init__(self, chain: Chain, engine_id: str, sharing: Sharing) -> None:
        super().__init__(chain)
        self.engine_id = engine_id
        self._sharing = sharing
        self._holder: Holder | None = None

    def joins(self, holder: Holder) -> list[Holder]:
        """The grant is held."""
        self._holder = holder
        return _changed((*self._sharing.at(self.engine_id).join(self), self))

    def shows(self) -> list[Holder]:
        """The first token came."""
        if self.live:
            return []
        bearers = self._sharing.at(self.engine_id).shows(self)
        self._sharing.on_change(self.chain[0].key)
        return _changed((*bearers, self))

    def leaves(self) -> list[Holder]:
        """The grant is about to be given back: only after the ledger was told."""
        first, was_live = self.chain[0].key, self.live
        heir = self._sharing.at(self.engine_id).leave(self)
        if was_live:
            self._sharing.on_change(first)
        self._sharing.tidy(self.engine_id)
        return [] if heir is None else _changed((heir,))

    def taken(self) -> Holder | None:
        """Its holder, where it reserves something else by its parts now."""
        holder = self._holder
        return holder if holder is not None and holder.take_parts(self.parts) else None


def _changed(shares: Iterable[Share]) -> list[Holder]:
    return [holder for share in shares if (holder := share.taken()) is not None]


class Sharing:
    """What runs on the engines of one pool. `salt` is chosen by chance unless a test says it."""

    def __init__(self, *, on: bool, salt: bytes | None = None) -> None:
        self._on = on
        self._salt = token_bytes(SALT_BYTES) if salt is None else salt
        self.on_change: Callable[[int], None] = lambda _: None
        """Called with the first link's key when something else can be lent of what begins so."""
        self._at: dict[str, Beginnings[Share]] = {}
        """Of the engines where somebody shares, or could."""

    def beginning(
        self, request: InferenceRequest, body: bytes, count: TokenCount, shapes: Iterable[EngineShape]
    ) -> Beginning:
        """What the prompt begins with; empty where nothing can be shared: off, not known, or not cached there."""
        sizes = {shape.block_size for shape in shapes if shareable(shape)} if self._on else ()
        if not sizes or not _simple(request):
            return {}
        found = _token_ids(request, body, count)
        if found is None:
            return {}
        tokens, apart = found
        return {size: chain_of(self._salt, apart, tokens, size) for size in sizes}

    def share_of(self, beginning: Beginning, grant: Grant) -> Share | None:
        """None where nothing is shared with anybody there: not cached, or shorter than a block."""
        chain = beginning.get(grant.shape.block_size) if shareable(grant.shape) else None
        return Share(chain, grant.engine_id, self) if chain else None

    def at(self, engine_id: str) -> Beginnings[Share]:
        return self._at.setdefault(engine_id, Beginnings())

    def tidy(self, engine_id: str) -> None:
        """Engines come and go; what nobody runs on is not kept."""
        if not len(self.at(engine_id)):
            del self._at[engine_id]

    def lent_blocks(self, beginning: Beginning, shape: EngineShape, engine_ids: Iterable[str]) -> int:
        """What a request would be lent on each of these engines, which have this shape; the least of it."""
        chain = beginning.get(shape.block_size) if shareable(shape) else None
        if not chain:
            return 0
        at = (self._at.get(engine_id) for engine_id in engine_ids)
        return min((0 if one is None else one.live_blocks(chain) for one in at), default=0)

    def saved_blocks(self, engine_id: str) -> int:
        """What reservations there are smaller by."""
        beginnings = self._at.get(engine_id)
        return 0 if beginnings is None else beginnings.saved_blocks


def _simple(request: InferenceRequest) -> bool:
    """One prompt as it was sent, and one sequence."""
    alone = request.n == 1 and len(request.prompts) == 1
    return alone and request.prompt_tokens_max is None and request.endpoint in CACHING


def _token_ids(
    request: InferenceRequest, body: bytes, count: TokenCount
) -> tuple[memoryview, tuple[bytes, ...]] | None:
    """The prompt, and what else its blocks are known by; None where it is not known, or not read from the cache."""
    try:
        read = _BODY.decode(body)
        if read.said or (read.sampling_params is not None and read.sampling_params.said):
            return None
        tokens = memoryview(_given(request, read) if count.ids is None else count.ids)
    except (msgspec.DecodeError, OverflowError):
        return None  # the engine will say what is wrong with it
    if tokens.nbytes != count.total * TOKEN_BYTES:
        return None
    return tokens, ((request.model or "").encode(), bytes(read.cache_salt))


def _given(request: InferenceRequest, read: _Body) -> bytes:
    """The ids that were sent; b"" for a text. Raises msgspec.DecodeError and OverflowError for what are no ids."""
    if request.prompts[0].tokens is None:
        return b""
    prompt = read.token_ids if request.endpoint is Endpoint.GENERATE else read.prompt
    return packed(_ids(prompt))


def _ids(prompt: msgspec.Raw) -> list[int]:
    """Of a prompt that may stand in a list by itself. Raises msgspec.DecodeError for anything else."""
    try:
        return _ONE.decode(prompt)
    except msgspec.ValidationError:
        prompts = _LIST.decode(prompt)
        return prompts[0] if len(prompts) == 1 else []
