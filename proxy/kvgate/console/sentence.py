"""The first line of the console: is anyone waiting, who, why, and what would help? Pure, from a pool to words.

In the order of what matters: nothing can start at all; somebody waits; nobody does. As far as the sums show: how
large the next request is, only the queue knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.console.snapshot import TAKEN_OUT, Headline
from kvgate.console.words import amount, engine_name, engine_word, listed, percent, requests, share, time

if TYPE_CHECKING:
    from kvgate.console.snapshot import EngineShown, PoolShown, TenantShown

NOBODY = "anonymous"
"""The only tenant of a process without a policy of tenants: naming it says nothing."""
FULL = 0.85
"""Reserved share from which on an engine counts as full: what is free is less than most requests need."""
NAMED_MAX = 3
"""Tenants that the first line names."""
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
    if not _taking(pool):
        return _no_engine(pool)
    if pool.queued:
        why, what, is_cause = _why(pool)
        notes = _notes(pool, is_away_said=is_cause)
        return Headline("wait", f"{_because(pool, why, ':')}.{_longest(pool)}", what, notes)
    return Headline("note" if notes else "ok", f"Nobody waits. {_fill(pool)}", "", notes)


_NO_ENGINE_HELP = "Are the backends of the policy right, and do they run? kvgate check says what it finds."


def _then(pool: PoolShown, why: str, else_: str) -> str:
    """With who waits, where somebody does."""
    return f"{_because(pool, why)}.{_longest(pool)}" if pool.queued else f"{else_}: {why}."


def _because(pool: PoolShown, why: str, link: str = ", because") -> str:
    """Who waits, and why; behind a list of tenants, why is a sentence of its own."""
    who, is_list = _who(pool)
    return f"{who}. {_upper(why)}" if is_list else f"{who}{link} {why}"


def _no_engine(pool: PoolShown) -> Headline:
    states = _states(list(pool.engines))
    drained = all(engine.state in TAKEN_OUT for engine in pool.engines)
    busy = any(engine.state == "busy" for engine in pool.engines)
    what = (
        "Undrain one of them."
        if drained
        else "One that is busy takes work again in a moment."
        if busy
        else "Start one, or undrain one. The engines below say what was seen of them."
    )
    who = _because(pool, "no engine takes work") if pool.queued else "No engine takes work"
    return Headline("stop", f"{who}: {states}.{_longest(pool)}{_still(pool)}", what, _ledger_notes(pool))


# Who waits.


def _who(pool: PoolShown) -> tuple[str, bool]:
    """And whether it is a list of tenants, whose numbers add up."""
    waiting = sorted((t for t in pool.tenants if t.queued), key=lambda t: (-t.queued, t.name))
    wait = "wait" if pool.queued != 1 else "waits"
    if not waiting or waiting[0].name == NOBODY:
        return f"{requests(pool.queued)} {wait}", False
    if waiting[0].queued >= pool.queued:
        return f"{requests(pool.queued)} of tenant {waiting[0].name} {wait}", False
    parts = [f"{tenant.queued:,} of {tenant.name}" for tenant in waiting[:NAMED_MAX]]
    return f"{requests(pool.queued)} {wait}: {', '.join(parts)}{_others(pool, waiting)}", True


def _others(pool: PoolShown, waiting: list[TenantShown]) -> str:
    """Those that are not named, so that the numbers add up."""
    rest, more = pool.queued - sum(tenant.queued for tenant in waiting[:NAMED_MAX]), len(waiting) - NAMED_MAX
    if rest <= 0:
        return ""
    if sum(tenant.queued for tenant in waiting) < pool.queued:  # only so many tenants are listed
        return f" and {rest:,} of others"
    return f" and {rest:,} of {more:,} more tenant{'s' if more > 1 else ''}"


def _longest(pool: PoolShown) -> str:
    """Below a second it is the ordinary pace of things."""
    if not pool.queued or pool.oldest_wait_s < 1:
        return ""
    return f" The longest wait is {time(pool.oldest_wait_s)}."


# The engines.


def _taking(pool: PoolShown) -> list[EngineShown]:
    return [engine for engine in pool.engines if engine.accepting]


def _away(pool: PoolShown) -> list[EngineShown]:
    """They take no work."""
    return [engine for engine in pool.engines if not engine.accepting]


def _taken(engines: list[EngineShown]) -> tuple[int, int]:
    """The blocks that are taken, and those that may be; forecasts that grew beyond an engine fill it."""
    taken = sum(min(engine.blocks_taken, engine.blocks_open) for engine in engines)
    return taken, sum(engine.blocks_open for engine in engines)


def _is_taken(engines: list[EngineShown]) -> str:
    """Forecasts take more than they reserve."""
    aside = any(engine.blocks_taken > engine.blocks_reserved for engine in engines)
    return "reserved, or set aside for longer answers" if aside else "reserved"


# Why, and what would help.


def _why(pool: PoolShown) -> tuple[str, str, bool]:
    """Why, what would help, and whether why says which engines take no work."""
    most = max((t for t in pool.tenants if t.queued), key=lambda t: t.queued, default=None)
    if most is not None and most.waits_for == "its own limit":
        who = "it" if most.queued >= pool.queued else f"tenant {most.name}"
        why, what = _at_limit(most, who)
        return why, _IN_VAIN if _is_full(pool) else what, False
    if pool.ledger_mode == "local":
        why = f"the shared ledger is away, and each process may fill only its share{_share(_taking(pool))}"
        return why, "Bring the Redis back: what needs more than the share waits for it.", False
    is_behind_prompts = most is not None and most.waits_for == "prompts"
    why, what = _at_prompts(_names(pool, _taking(pool))[0]) if is_behind_prompts else _full(pool)
    return f"{why}{_and_away(pool)}", what, True


def _share(engines: list[EngineShown]) -> str:
    """Of an engine, where all have one of the same size."""
    sizes = {(engine.blocks_share, engine.blocks) for engine in engines}
    share_blocks, blocks = next(iter(sizes), (None, 0))
    return "" if share_blocks is None or len(sizes) > 1 else f", {share_blocks:,} of {blocks:,} blocks"


def _and_away(pool: PoolShown) -> str:
    """Engines that take no work are a part of why there is no room."""
    away = _away(pool)
    return f", and {_states(away)} ({len(away)} of {len(pool.engines)} engines)" if away else ""


def _states(engines: list[EngineShown]) -> str:
    return listed([f"{engine_name(engine.id)} {engine_word(engine)}" for engine in engines])


_IN_VAIN = "Its own requests have to end. The engines are full, too: with a higher limit it would take from the others."


def _is_full(pool: PoolShown) -> bool:
    taken, blocks = _taken(_taking(pool))
    return taken >= FULL * blocks


def _at_limit(tenant: TenantShown, who: str) -> tuple[str, str]:
    if not tenant.borrow and tenant.blocks_guaranteed <= tenant.blocks_limit:
        bound = f"{who} has all of its fixed share of {share(tenant.guarantee)}"
        return (
            bound,
            "A larger guarantee, or borrow: true, lets it go on; otherwise its own requests have to end.",
        )
    limit = (
        f"{amount(tenant.limit_tokens)} tokens" if tenant.limit_tokens is not None else share(tenant.limit)
    )
    return (
        f"{who} is at its limit of {limit}",
        "A higher limit lets it go on; otherwise its own requests have to end.",
    )


def _full(pool: PoolShown) -> tuple[str, str]:
    engines = _taking(pool)
    name, whose = _names(pool, engines)
    if all(engine.seqs_reserved >= engine.seqs for engine in engines):
        seqs = sum(engine.seqs for engine in engines)
        what = f"Raise the sequences of an engine (max_num_seqs, there and here), or {_another(pool)}."
        return f"{name} full, all {seqs} sequence slots are taken", what
    taken, blocks = _taken(engines)
    if _is_full(pool):
        why = f"{name} full, {percent(taken, blocks)} of {whose} KV cache is {_is_taken(engines)}"
        return why, _more_room(pool, engines)
    if kept := [engine for engine in engines if engine.kept_for is not None]:
        names = listed([engine_name(engine.id) for engine in kept])
        verb = "engine {} is" if len(kept) == 1 else "engines {} are"
        why = f"{verb.format(names)} kept free for a large request that others passed often enough"
        return why, "It starts as soon as enough has ended there."
    if all(engine.prefill_tokens_reserved >= engine.prefill_tokens for engine in engines):
        return _at_prompts(name)
    share_taken = f"{percent(taken, blocks)} of the KV cache {_is_taken(engines)}"
    why = f"what is free is less than the next one needs, with {share_taken}"
    return why, "Send smaller requests (max_tokens, n), or take larger engines."


def _at_prompts(name: str) -> tuple[str, str]:
    return f"{name} at work on as many prompts as may be at once", _PREFILL_HELP


_PREFILL_HELP = "They go on as soon as a prompt is computed; KVGATE_PREFILL_TOKENS_MAX is the bound."


def _names(pool: PoolShown, engines: list[EngineShown]) -> tuple[str, str]:
    """Those that take work, with their verb; by name where others do not."""
    names = "" if len(engines) == len(pool.engines) else f" {listed([engine_name(e.id) for e in engines])}"
    the = "" if names else "the "
    whose = "its" if len(engines) == 1 and names else "their" if names else "the"
    return (f"{the}engine{names} is" if len(engines) == 1 else f"{the}engines{names} are"), whose


def _another(pool: PoolShown) -> str:
    """Room for more; one that somebody took out is nearest at hand."""
    drained = [engine_name(engine.id) for engine in pool.engines if engine.state in TAKEN_OUT]
    return f"undrain {listed(drained)}" if drained else "add an engine"


def _more_room(pool: PoolShown, engines: list[EngineShown]) -> str:
    more = _another(pool)
    used = [engine.blocks_in_use for engine in engines if engine.blocks_in_use is not None]
    taken = sum(engine.blocks_taken for engine in engines)
    if len(used) == len(engines) and sum(used) < IDLE * taken:
        if any(part.kind != "guaranteed" for engine in engines for part in engine.parts):
            return (
                f"Only {percent(sum(used), taken)} of that is in use: the rest is for answers that get longer, less "
                f"of it the better their lengths are known. {_upper(more)}, or lower max_tokens."
            )
        return (
            f"Only {percent(sum(used), taken)} of that is in use: answers end long before their max_tokens, so "
            f"lower ones would let more in at once. Or {more}."
        )
    return f"{_upper(more)}, or lower max_tokens."


# What else.


def _fill(pool: PoolShown) -> str:
    engines = _taking(pool)
    reserved, blocks = sum(e.blocks_reserved for e in engines), sum(e.blocks for e in engines)
    told = percent(reserved, blocks)
    filled = f"{_upper(told)} of the KV cache is reserved." if reserved else "Nothing is reserved."
    still = _still(pool)
    return f"{filled[:-1]} where work is taken.{still}" if still else filled


def _still(pool: PoolShown) -> str:
    """What runs where nothing new is started."""
    running = sum(engine.reservations for engine in _away(pool))
    if not running:
        return ""
    run = "runs" if running == 1 else "run"
    return f" {requests(running)} still {run} on engines that take no work."


def _notes(pool: PoolShown, *, is_away_said: bool = False) -> tuple[str, ...]:
    away = _away(pool)
    notes = list(_ledger_notes(pool))
    if away and len(away) < len(pool.engines) and not is_away_said:
        take = "takes" if len(away) == 1 else "take"
        notes.append(f"{len(away)} of {len(pool.engines)} engines {take} no work: {_states(away)}.")
    if foreign := [engine_name(engine.id) for engine in pool.engines if engine.foreign]:
        notes.append(f"Requests wait inside {listed(foreign)}: something reaches it beside kvgate.")
    if doubted := [engine for engine in pool.engines if engine.blocks_open < engine.blocks]:
        open_ = [f"{engine_name(e.id)} to {percent(e.blocks_open, e.blocks)}" for e in doubted]
        notes.append(f"Filled less than it could be, for it preempted or serves others too: {listed(open_)}.")
    return tuple(notes)


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _ledger_notes(pool: PoolShown) -> tuple[str, ...]:
    told = {
        "local": "The shared ledger is away, mode local: each process admits within its share of the engines.",
        "open": "The shared ledger is away, mode open: everything is admitted, as if kvgate were not there.",
    }
    return (told[pool.ledger_mode],) if pool.ledger_mode in told else ()
