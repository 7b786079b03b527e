"""Whose reservation has the KV blocks of a prompt's beginning, when several running requests begin alike?

An engine that caches prefixes keeps one copy of such blocks, held by all of them. A ledger that counts it for each
stops at half of what fits. Here one of those that hold a block, its *bearer*, has it in its reservation; its *guests*
do not.

1. A beginning is a chain of whole blocks of token ids, never all of the prompt: the block of its last token is computed
   anew by everyone (`kv_cost`, rule 3).
2. Nobody becomes a guest of a block before somebody who holds it has had its first token: then it is computed, held,
   and found by whoever comes. Those that came meanwhile found it too, and become guests with their own first token.
3. A guest may hold the block for longer than its bearer lives: when the bearer ends, another holder is the bearer from
   then on. `leave` says which, to be told to the ledger before the bearer's room is given back. The blocks that one
   bearer leaves lie on one path, so whoever holds the deepest of them holds them all: there is at most one heir.
4. Blocks that one request alone holds are its own, and nothing is changed about its forecast.

Exact where an engine has one copy of a block that is held: vLLM looks a prompt up when it starts to read it, and finds
what was allocated for others up to then. Prompts are read one after the other, unless it runs with
`--long-prefill-token-threshold`: then two that come together may be read side by side, with a copy each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import takewhile
from typing import Generic, TypeVar

from kvgate_policies.occupancy import Occupancy, guaranteed
from kvgate_policies.types import EngineShape, KVCost

WHOLE_BLOCKS = 64
"""So far each block is a link of its own; then twice as many blocks make a link whenever a chain is twice as long. A
long beginning loses less than 1/32 by that, and the longest chain has some 400 links."""
HASH_BYTES = 8
TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Link:
    """Blocks that follow each other in a beginning."""

    key: int
    """Hash of all tokens from the first one to its last."""
    blocks: int


Chain = tuple[Link, ...]


def shareable(shape: EngineShape) -> bool:
    """Whether engines of this shape hold a beginning once, and in blocks that are known."""
    return shape.prefix_caching and shape.grows_evenly


def chain_of(salt: bytes, apart: Sequence[bytes], token_ids: memoryview, block_size: int) -> Chain:
    """The links of a prompt of `token_ids`, four bytes each. Prompts with another `apart` share nothing.

    Raises ValueError for bytes that are no whole tokens.
    """
    tokens, rest = divmod(token_ids.nbytes, TOKEN_BYTES)
    if rest:
        raise ValueError(f"{token_ids.nbytes} bytes are no tokens of {TOKEN_BYTES} bytes")
    running = blake2b(digest_size=HASH_BYTES, key=salt)
    for part in apart:
        running.update(len(part).to_bytes(HASH_BYTES, "big"))
        running.update(part)
    links: list[Link] = []
    done = 0
    for depth in _depths(max(tokens - 1, 0) // block_size):
        running.update(token_ids[done * block_size * TOKEN_BYTES : depth * block_size * TOKEN_BYTES])
        links.append(Link(int.from_bytes(running.digest(), "big"), depth - done))
        done = depth
    return tuple(links)


def _depths(blocks: int) -> Iterator[int]:
    """Where links end, in blocks from the first one."""
    depth, step, turn = 0, 1, WHOLE_BLOCKS
    while depth + step <= blocks:
        depth += step
        yield depth
        if depth == turn:
            step, turn = 2 * step, 2 * turn


@dataclass(frozen=True, slots=True)
class Parts:
    """Of a request's blocks, those that it does not hold alone."""

    lent: int = 0
    """It holds them, and another one has them in its reservation."""
    pledged: int = 0
    """It has them in its reservation for others, too, and they may outlive it."""

    @property
    def both(self) -> int:
        """What is not its own: no part of what its forecast is about."""
        return self.lent + self.pledged


NO_PARTS = Parts()


@dataclass(slots=True, eq=False)
class Sharer:
    """A running request, as those see it that begin like it."""

    chain: Chain
    live: bool = False
    """Whether it has had its first token."""
    parts: Parts = NO_PARTS


SharerT = TypeVar("SharerT", bound=Sharer)


@dataclass(slots=True, eq=False)
class _Held(Generic[SharerT]):
    """Blocks that somebody holds. With guests there is a bearer, always."""

    blocks: int
    bearer: SharerT | None = None
    guests: dict[SharerT, None] = field(default_factory=dict[SharerT, None])
    own: dict[SharerT, None] = field(default_factory=dict[SharerT, None])
    """Who has them in its reservation as if nobody else held them."""
    live: int = 0
    """Holders that have had their first token."""

    @property
    def empty(self) -> bool:
        return self.bearer is None and not self.guests and not self.own


class Beginnings(Generic[SharerT]):
    """The beginnings of all requests that run on one engine.

    Each call says whose parts changed beside the caller's own, for the ledger to be told: what grows first.
    """

    def __init__(self) -> None:
        self._held: dict[int, _Held[SharerT]] = {}
        self.saved_blocks = 0
        """What reservations are smaller by, all together."""

    def __len__(self) -> int:
        """Links that somebody holds."""
        return len(self._held)

    def live_blocks(self, chain: Chain) -> int:
        """Blocks of a beginning that one who joined now would be a guest of."""
        live = takewhile(lambda link: self._is_live(link.key), chain)
        return sum(link.blocks for link in live)

    def _is_live(self, key: int) -> bool:
        held = self._held.get(key)
        return held is not None and held.live > 0

    def join(self, sharer: SharerT) -> list[SharerT]:
        """It starts: a guest of what is in the cache for certain. Returns those that bear it from now on."""
        bearers: dict[SharerT, None] = {}
        for link in sharer.chain:
            held = self._held.setdefault(link.key, _Held(link.blocks))
            if held.live:
                self._lend(held, sharer, bearers)
            else:
                held.own[sharer] = None
        return list(bearers)

    def shows(self, sharer: SharerT) -> list[SharerT]:
        """Its first token came: a guest of what others have in the cache. Returns those that bear it from now on."""
        if sharer.live:
            return []
        sharer.live = True
        bearers: dict[SharerT, None] = {}
        for link in sharer.chain:
            held = self._held[link.key]
            borne = held.live > 0 or held.bearer is not None
            if borne and sharer in held.own:
                del held.own[sharer]
                self._lend(held, sharer, bearers)
            held.live += 1
        return list(bearers)

    def leave(self, sharer: SharerT) -> SharerT | None:
        """It ends. Returns the one that bears from now on what it had borne for others; None where there is nobody."""
        heir: SharerT | None = None
        for link in reversed(sharer.chain):
            held = self._held[link.key]
            held.live -= sharer.live
            held.own.pop(sharer, None)
            if sharer in held.guests:
                del held.guests[sharer]
                self.saved_blocks -= held.blocks
            elif held.bearer is sharer:
                held.bearer = None
                if held.guests:
                    heir = heir or _heir(held)
                    self._inherit(held, heir)
            if held.empty:
                del self._held[link.key]
        sharer.chain, sharer.parts = (), NO_PARTS
        return heir

    def _lend(self, held: _Held[SharerT], guest: SharerT, bearers: dict[SharerT, None]) -> None:
        if held.bearer is None:
            held.bearer = next(one for one in held.own if one.live)
            del held.own[held.bearer]
            _move(held.bearer, pledged=held.blocks)
            bearers[held.bearer] = None
        held.guests[guest] = None
        _move(guest, lent=held.blocks)
        self.saved_blocks += held.blocks

    def _inherit(self, held: _Held[SharerT], heir: SharerT) -> None:
        if heir in held.guests:
            del held.guests[heir]
            _move(heir, lent=-held.blocks)
            self.saved_blocks -= held.blocks
        else:
            del held.own[heir]
        held.bearer = heir
        _move(heir, pledged=held.blocks)


def _move(sharer: Sharer, *, lent: int = 0, pledged: int = 0) -> None:
    sharer.parts = Parts(sharer.parts.lent + lent, sharer.parts.pledged + pledged)


def _heir(held: _Held[SharerT]) -> SharerT:
    """Of those that hold them: one whose reservation has them already, if there is one."""
    return next(iter(held.own), None) or next(iter(held.guests))


def reshared(cost: KVCost, before: Parts, after: Parts) -> KVCost:
    """What a request reserves when the parts of its blocks that others see to change; their sum never falls.

    What it is expected to hold has both parts taken out in proportion to its peak. That is at most what they are of it,
    and the next vector made for it is exact again. What is pledged stays, whatever becomes of the request.
    """
    blocks = cost.blocks + before.lent - after.lent
    if cost.expected is None:
        return replace(cost, blocks=blocks)
    alone = cost.blocks - before.pledged
    expected = _thinner(cost.expected - guaranteed(before.pledged), alone - (after.both - before.both), alone)
    return replace(cost, blocks=blocks, expected=expected + guaranteed(after.pledged))


def discounted(cost: KVCost, lent: int, block_size: int) -> KVCost:
    """What one costs that would be a guest of so many blocks: they are not reserved, and their tokens not read."""
    read = max(cost.prefill_tokens - lent * block_size, 0)
    return replace(reshared(cost, NO_PARTS, Parts(lent=lent)), prefill_tokens=read)


def _thinner(expected: Occupancy, part: int, whole: int) -> Occupancy:
    """`part / whole` of it, never less; integers, so that sums come back to zero."""
    return Occupancy(
        tuple(-(-mean * part // whole) for mean in expected.means),
        tuple(-(-variance * part * part // (whole * whole)) for variance in expected.variances),
    )
