"""On which engine does a request start, and for which engine does one that fits nowhere wait?

Rules, the same for every ledger:

1. An engine *covers* a request when its whole capacity holds the price: blocks and sequence slots. The
   prefill bound is left out, since the longest prompt of all may exceed it.
2. An engine *fits* a request when it accepts work and what is open there now holds the price. Where forecasts are
   reserved or asked for, that is the inequality of `forecast_fit`, at the newcomer's risk; or all peaks together fit,
   than which no more can be held: so a forecast never keeps out what its peak would not. Prompt tokens are bounded too,
   unless none are outstanding: a prompt above the bound goes alone, instead of never.
3. An engine with no reservation takes whatever it covers: leftover accounting can starve nobody.
4. An engine pinned by a waiting request is closed to all others.
5. Among those that fit, the least loaded *after* placement is taken, load being the larger of the two
   fractions used (of blocks, as the inequality counts them); equals take turns.
6. Before that, the first engine that the request prefers, and that fits it, if its load after placement is at most
   `PREFER_MARGIN` above the least: a prompt that is cached there is worth a fuller engine, within bounds.

Loads of guaranteed reservations are correctly rounded quotients of integers: equal fractions compare equal and
unequal ones differ, in any language. With forecasts they are the same operations on the same doubles in the same
order everywhere. So every ledger comes to the same choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate_policies.forecast_fit import Z_DEFAULT, ZVector, blocks_taken
from kvgate_policies.kv_cost import fits_empty
from kvgate_policies.types import ZERO_COST, EngineLimits, EngineShape, EngineUse, KVCost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PREFER_MARGIN = 0.25
"""Of an engine's capacity: more than this is not given for a cached prompt. Engines whose loads are that far apart
would soon be a full and an idle one."""


def covers(cost: KVCost, limits: EngineLimits) -> bool:
    """Whether the whole of the engine would hold the request (rule 1)."""
    return fits_empty(cost, limits)


def fits(cost: KVCost, use: EngineUse, z: ZVector = Z_DEFAULT) -> bool:
    """Whether the request could start there now (rules 2 and 3); who pinned the engine is not asked here."""
    return _blocks_if_fits(cost, use, z) is not None


def place(
    costs: Mapping[EngineShape, KVCost],
    engines: Sequence[EngineUse],
    request_id: str,
    avoid: frozenset[str],
    tie: int,
    z: ZVector = Z_DEFAULT,
    prefer: Sequence[str] = (),
) -> str | None:
    """The engine to start on, or None when the request fits nowhere now.

    An engine pinned by `request_id` itself is open to it; one pinned by another is not (rule 4). `tie` picks
    among equally loaded engines; a caller who counts it up makes them take turns.
    """
    loads: list[tuple[float, str]] = []
    for use in engines:
        cost = costs.get(use.limits.shape)
        open_to_us = use.pinned_by in {None, request_id} and use.limits.engine_id not in avoid
        if cost is None or not open_to_us:
            continue
        after = _blocks_if_fits(cost, use, z)
        if after is not None:
            loads.append((_load(use, cost, after), use.limits.engine_id))
    return _preferred(loads, prefer) or _first_of_least(loads, tie)


def least_loaded(
    costs: Mapping[EngineShape, KVCost],
    engines: Sequence[EngineUse],
    avoid: frozenset[str],
    tie: int,
    z: ZVector = Z_DEFAULT,
) -> str | None:
    """The engine for a request that starts whatever is reserved; None when none with a price accepts work.

    Rule 5 among all that accept work and have a price, whatever their room, and whoever pinned them.
    """
    loads = [
        (_load(use, cost, blocks_counted(use.reserved, cost, z)), use.limits.engine_id)
        for use in engines
        if (cost := costs.get(use.limits.shape)) is not None
        and use.limits.accepting
        and use.limits.engine_id not in avoid
    ]
    return _first_of_least(loads, tie)


def pin(
    costs: Mapping[EngineShape, KVCost],
    engines: Sequence[EngineUse],
    avoid: frozenset[str],
    z: ZVector = Z_DEFAULT,
) -> str | None:
    """The engine that will fit the request soonest, to be kept free for it; None when no engine ever could.

    Soonest is judged by the part that is missing, relative to the engine's capacity; then by load, then by
    order. Engines that are pinned, not accepting, or avoided are no candidates.
    """
    best: tuple[float, float] | None = None
    chosen: str | None = None
    for use in engines:
        cost = costs.get(use.limits.shape)
        if cost is None or not _pinnable(cost, use, avoid):
            continue
        now = blocks_counted(use.reserved, ZERO_COST, z)
        rank = (_missing(use, cost, blocks_counted(use.reserved, cost, z)), _load(use, ZERO_COST, now))
        if best is None or rank < best:
            best, chosen = rank, use.limits.engine_id
    return chosen


def blocks_at_risk(use: EngineUse) -> float:
    """Blocks reserved there, and by forecasts what chance may add."""
    return blocks_counted(use.reserved, ZERO_COST, Z_DEFAULT) if use.limits.blocks > 0 else 0.0


def _preferred(loads: Sequence[tuple[float, str]], prefer: Sequence[str]) -> str | None:
    """Rule 6."""
    if not prefer or not loads:
        return None
    by_id = {engine_id: load_after for load_after, engine_id in loads}
    most = min(by_id.values()) + PREFER_MARGIN
    return next((engine_id for engine_id in prefer if by_id.get(engine_id, most + 1.0) <= most), None)


def _first_of_least(loads: Sequence[tuple[float, str]], tie: int) -> str | None:
    if not loads:
        return None
    least = min(load for load, _ in loads)
    equals = [engine_id for load, engine_id in loads if load == least]
    return equals[tie % len(equals)]


def _prefill_fits(cost: KVCost, use: EngineUse) -> bool:
    outstanding = use.reserved.prefill_tokens
    return outstanding <= 0 or outstanding + cost.prefill_tokens <= use.limits.prefill_tokens


def _blocks_if_fits(cost: KVCost, use: EngineUse, z: ZVector) -> float | None:
    """Blocks that are counted there once the request started; None when it could not start now (rules 2 and 3)."""
    limits = use.limits
    if not limits.accepting or not covers(cost, limits):
        return None
    after = blocks_counted(use.reserved, cost, z)
    if use.reservations == 0:
        return after
    slots_fit = use.reserved.seqs + cost.seqs <= limits.seqs
    return after if slots_fit and after <= limits.blocks_open and _prefill_fits(cost, use) else None


def blocks_counted(reserved: KVCost, more: KVCost, z: ZVector) -> float:
    """Blocks of an engine that are taken, by rule 2, by what is reserved and `more`: a whole number where all of it is
    guaranteed.
    """
    peaks = reserved.blocks + more.blocks
    if more.expected is None and reserved.expected is None:
        return peaks
    return min(blocks_taken(reserved.occupancy, more.occupancy, z), peaks)


def _pinnable(cost: KVCost, use: EngineUse, avoid: frozenset[str]) -> bool:
    limits = use.limits
    return (
        limits.accepting and use.pinned_by is None and limits.engine_id not in avoid and covers(cost, limits)
    )


def _load(use: EngineUse, cost: KVCost, blocks_after: float) -> float:
    """The larger of the fractions of blocks and of slots in use once `cost` is added."""
    return max(
        blocks_after / max(use.limits.blocks, 1),
        (use.reserved.seqs + cost.seqs) / max(use.limits.seqs, 1),
    )


def _missing(use: EngineUse, cost: KVCost, blocks_after: float) -> float:
    """The largest part of a capacity to be given back before the request fits; 0 when it fits now."""
    if use.reservations == 0:
        return 0.0
    after = use.reserved + cost
    prefill = 0.0
    if not _prefill_fits(cost, use):
        excess = min(after.prefill_tokens - use.limits.prefill_tokens, use.reserved.prefill_tokens)
        prefill = excess / max(use.limits.prefill_tokens, 1)
    return max(
        0.0,
        (blocks_after - use.limits.blocks_open) / max(use.limits.blocks, 1),
        (after.seqs - use.limits.seqs) / max(use.limits.seqs, 1),
        prefill,
    )
