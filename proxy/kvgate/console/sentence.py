"""The first line of the console: is anyone waiting, who, why, and what would help? Pure, from a pool to words.

In the order of what matters: nothing can start at all; somebody waits; nobody does. As far as the sums show: how
large the next request is, only the queue knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.console.snapshot import Headline
from kvgate.console.words import amount, engine_name, engine_word, listed, percent, requests, share, time

if TYPE_CHECKING:
    from kvgate.console.snapshot import EngineShown, PoolShown, TenantShown

NOBODY = "anonymous"
"""The only tenant of a process without a policy of tenants: naming it says nothing."""
FULL = 0.85
"""Reserved share from which on an engine counts as full: what is free is less than most requests need."""
IDLE = 0.5
"""Below this part of what is reserved an engine's real use shows that answers are much shorter than their limits."""


def headline(pool: PoolShown) -> Headline:
    """What is so, why, what would help, and what else is not as it should be."""
    notes = _notes(pool)
    if pool.ledger_mode == "closed":
        text = _then(
            pool, "the shared ledger cannot be reached, and the mode is closed", "Nothing is admitted"
        )
        return Headline("stop", text, "Bring the Redis back; until then, ledger.on_failure decides.", notes)
    if not pool.engines:
        return Headline(
            "stop", _then(pool, "no engine is known", "Nothing can start"), _NO_ENGINE_HELP, notes
        )
    if not any(engine.accepting for engine in pool.engines):
        return _no_engine(pool)
    if pool.queued:
        why, what = _why(pool)
        return Headline("wait", f"{_who(pool)}: {why}.{_longest(pool)}", what, notes)
    return Headline("note" if notes else "ok", f"Nobody waits. {_fill(pool)}", "", notes)


_NO_ENGINE_HELP = "Are the backends of the policy right, and do they run? kvgate check says what it finds."


def _then(pool: PoolShown, why: str, else_: str) -> str:
    """With who waits, where somebody does."""
    return f"{_who(pool)}, because {why}.{_longest(pool)}" if pool.queued else f"{else_}: {why}."


def _no_engine(pool: PoolShown) -> Headline:
    states = listed([f"{engine_name(engine.id)} {engine_word(engine)}" for engine in pool.engines])
    drained = all(engine.state == "draining" for engine in pool.engines)
    busy = any(engine.state == "busy" for engine in pool.engines)
    what = (
        "Undrain one of them."
        if drained
        else "One that is busy takes work again in a moment."
        if busy
        else "Start one, or undrain one. The engines below say what was seen of them."
    )
    who = f"{_who(pool)}, because no engine takes work" if pool.queued else "No engine takes work"
    return Headline("stop", f"{who}: {states}.{_longest(pool)}", what, _ledger_notes(pool))


# Who waits.


def _who(pool: PoolShown) -> str:
    waiting = sorted((t for t in pool.tenants if t.queued), key=lambda t: (-t.queued, t.name))
    wait = "wait" if pool.queued != 1 else "waits"
    if not waiting or waiting[0].name == NOBODY:
        return f"{requests(pool.queued)} {wait}"
    most = waiting[0]
    if most.queued >= pool.queued:
        return f"{requests(pool.queued)} of tenant {most.name} {wait}"
    return f"{requests(pool.queued)} {wait}, {most.queued} of them tenant {most.name}'s"


def _longest(pool: PoolShown) -> str:
    """Below a second it is the ordinary pace of things."""
    if not pool.queued or pool.oldest_wait_s < 1:
        return ""
    return f" The longest for {time(pool.oldest_wait_s)}."


# Why, and what would help.


def _why(pool: PoolShown) -> tuple[str, str]:
    most = max((t for t in pool.tenants if t.queued), key=lambda t: t.queued, default=None)
    if most is not None and most.waits_for == "its own limit":
        why, what = _at_limit(most)
        return why, _IN_VAIN if _is_full(pool) else what
    if pool.ledger_mode == "local":
        return "the shared ledger is away, and each process may fill only its share", "Bring the Redis back."
    return _full(pool)


_IN_VAIN = "Its own requests have to end. The engines are full, too: with a higher limit it would take from the others."


def _is_full(pool: PoolShown) -> bool:
    engines = [engine for engine in pool.engines if engine.accepting]
    reserved, blocks = sum(e.blocks_reserved for e in engines), sum(e.blocks_open for e in engines)
    return reserved >= FULL * blocks


def _at_limit(tenant: TenantShown) -> tuple[str, str]:
    if not tenant.borrow and tenant.blocks_guaranteed <= tenant.blocks_limit:
        bound = f"it has all of its fixed share of {share(tenant.guarantee)}"
        return (
            bound,
            "A larger guarantee, or borrow: true, lets it go on; otherwise its own requests have to end.",
        )
    limit = (
        f"{amount(tenant.limit_tokens)} tokens" if tenant.limit_tokens is not None else share(tenant.limit)
    )
    return (
        f"it is at its limit of {limit}",
        "A higher limit lets it go on; otherwise its own requests have to end.",
    )


def _full(pool: PoolShown) -> tuple[str, str]:
    engines = [engine for engine in pool.engines if engine.accepting]
    name = "the engine is" if len(engines) == 1 else "the engines are"
    if all(engine.seqs_reserved >= engine.seqs for engine in engines):
        seqs = sum(engine.seqs for engine in engines)
        what = "More sequences for an engine (max_num_seqs, there and here), or another engine."
        return f"{name} full, all {seqs} sequence slots are taken", what
    reserved, blocks = sum(e.blocks_reserved for e in engines), sum(e.blocks_open for e in engines)
    if _is_full(pool):
        return f"{name} full, {percent(reserved, blocks)} of the KV cache is reserved", _more_room(engines)
    if kept := [engine for engine in engines if engine.kept_for is not None]:
        names = listed([engine_name(engine.id) for engine in kept])
        verb = "is" if len(kept) == 1 else "are"
        why = f"{names} {verb} kept free for a large request that others passed often enough"
        return why, "It starts as soon as enough has ended there."
    if all(engine.prefill_tokens_reserved >= engine.prefill_tokens for engine in engines):
        return "the engines are at work on as many prompts as they are given at once", _PREFILL_HELP
    why = f"what is free is less than the next one needs, with {percent(reserved, blocks)} of the KV cache reserved"
    return why, "Smaller requests (max_tokens, n), or larger engines."


_PREFILL_HELP = "They go on as soon as a prompt is computed; KVGATE_PREFILL_TOKENS_MAX is the bound."


def _more_room(engines: list[EngineShown]) -> str:
    used = [engine.blocks_in_use for engine in engines if engine.blocks_in_use is not None]
    reserved = sum(engine.blocks_reserved for engine in engines)
    if len(used) == len(engines) and sum(used) < IDLE * reserved:
        return (
            f"Only {percent(sum(used), reserved)} of that is in use: answers end long before their max_tokens, so "
            "lower ones would let more in at once. Or another engine."
        )
    return "Another engine, or requests with a lower max_tokens."


# What else.


def _fill(pool: PoolShown) -> str:
    engines = [engine for engine in pool.engines if engine.accepting]
    reserved, blocks = sum(e.blocks_reserved for e in engines), sum(e.blocks for e in engines)
    told = percent(reserved, blocks)
    return f"{told[0].upper()}{told[1:]} of the KV cache is reserved." if reserved else "Nothing is reserved."


def _notes(pool: PoolShown) -> tuple[str, ...]:
    away = [engine for engine in pool.engines if not engine.accepting]
    notes = list(_ledger_notes(pool))
    if away and len(away) < len(pool.engines):
        states = listed([f"{engine_name(engine.id)} {engine_word(engine)}" for engine in away])
        take = "takes" if len(away) == 1 else "take"
        notes.append(f"{len(away)} of {len(pool.engines)} engines {take} no work: {states}.")
    if foreign := [engine_name(engine.id) for engine in pool.engines if engine.foreign]:
        notes.append(f"Requests wait inside {listed(foreign)}: something reaches it beside kvgate.")
    if doubted := [engine for engine in pool.engines if engine.blocks_open < engine.blocks]:
        open_ = [f"{engine_name(e.id)} to {percent(e.blocks_open, e.blocks)}" for e in doubted]
        notes.append(f"Filled less than it could be, for it preempted or serves others too: {listed(open_)}.")
    return tuple(notes)


def _ledger_notes(pool: PoolShown) -> tuple[str, ...]:
    told = {
        "local": "The shared ledger is away, mode local: each process admits within its share of the engines.",
        "open": "The shared ledger is away, mode open: everything is admitted, as if kvgate were not there.",
    }
    return (told[pool.ledger_mode],) if pool.ledger_mode in told else ()
