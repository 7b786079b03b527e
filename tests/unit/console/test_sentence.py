"""The first line: who waits, why, what would help."""

from __future__ import annotations

import pytest

from kvgate.console.sentence import headline
from kvgate.console.snapshot import Level, Part, PoolShown
from kvgate.console.words import amount, listed, percent, requests, share, time
from unit.console.made import away, engine, pool, tenant

A, B, C = "http://a:8000", "http://b:8000", "http://c:8000#1"
FULL = engine(A, 98)


CASES: dict[str, tuple[PoolShown, Level, str]] = {
    "nobody, nothing": (pool(engine(A)), "ok", "Nobody waits. Nothing is reserved."),
    "nobody, half full": (
        pool(engine(A, 100), engine(B)),
        "ok",
        "Nobody waits. 50 % of the KV cache is reserved.",
    ),
    "a little": (
        pool(engine(A, 1, blocks=300, blocks_open=300)),
        "ok",
        "Nobody waits. Under 1 % of the KV cache is reserved.",
    ),
    "one tenant at its limit among others": (
        pool(
            engine(A, 60),
            tenants=(
                tenant("acme", 11, limit=0.4, waits_for="its own limit"),
                tenant("b", 2),
                tenant("c", 1),
            ),
        ),
        "wait",
        "14 requests wait: 11 of acme, 2 of b, 1 of c. Tenant acme is at its limit of 40 %.",
    ),
    "one tenant alone, for long": (
        pool(
            engine(A, 60),
            tenants=(tenant("acme", 14, limit=0.125, waits_for="its own limit", oldest_wait_s=12.4),),
        ),
        "wait",
        "14 requests of tenant acme wait: it is at its limit of 12.5 %. The longest wait is 12 s.",
    ),
    "a limit in tokens": (
        pool(
            engine(A, 60),
            tenants=(tenant("acme", 1, limit_tokens=200_000, waits_for="its own limit"),),
        ),
        "wait",
        "1 request of tenant acme waits: it is at its limit of 200k tokens.",
    ),
    "a hard partition": (
        pool(
            engine(A, 60),
            tenants=(
                tenant(
                    "acme",
                    3,
                    borrow=False,
                    guarantee=0.3,
                    blocks_guaranteed=30,
                    blocks_limit=100,
                    waits_for="its own limit",
                ),
            ),
        ),
        "wait",
        "3 requests of tenant acme wait: it has all of its fixed share of 30 %.",
    ),
    "full": (
        pool(FULL, engine(B, 96), tenants=(tenant("acme", 2), tenant("zeta", 2))),
        "wait",
        "4 requests wait: 2 of acme, 2 of zeta. The engines are full, 97 % of the KV cache is reserved.",
    ),
    "full, and one waits more than the other": (
        pool(FULL, engine(B, 96), tenants=(tenant("acme", 3), tenant("zeta", 2))),
        "wait",
        "5 requests wait: 3 of acme, 2 of zeta. The engines are full, 97 % of the KV cache is reserved.",
    ),
    "full, without tenants": (
        pool(FULL, tenants=(tenant("anonymous", 5, oldest_wait_s=130.0),)),
        "wait",
        "5 requests wait: the engine is full, 98 % of the KV cache is reserved. The longest wait is 2 min.",
    ),
    "more than were listed": (
        pool(FULL, queued=900, tenants=(tenant("acme", 500),)),
        "wait",
        "900 requests wait: 500 of acme and 400 of others. The engine is full, 98 % of the KV cache is reserved.",
    ),
    "nobody is listed": (
        pool(FULL, queued=1),
        "wait",
        "1 request waits: the engine is full, 98 % of the KV cache is reserved.",
    ),
    "no slots": (
        pool(engine(A, 20, seqs_reserved=8), engine(B, 20, seqs_reserved=8), tenants=(tenant("acme", 1),)),
        "wait",
        "1 request of tenant acme waits: the engines are full, all 16 sequence slots are taken.",
    ),
    "kept free": (
        pool(engine(A, 40, kept_for="r1"), engine(B, 70), tenants=(tenant("acme", 1),)),
        "wait",
        "1 request of tenant acme waits: engine a:8000 is kept free for a large request that others passed often enough.",
    ),
    "prompts": (
        pool(engine(A, 40, prefill_tokens_reserved=1200), tenants=(tenant("acme", 1),)),
        "wait",
        "1 request of tenant acme waits: the engine is at work on as many prompts as may be at once.",
    ),
    "prompts, while blocks and slots are free": (
        pool(
            engine(A, 90, prefill_tokens_reserved=600),
            away(B, "down"),
            tenants=(tenant("acme", 1, waits_for="prompts"),),
        ),
        "wait",
        (
            "1 request of tenant acme waits: engine a:8000 is at work on as many prompts as may be at once, and b:8000 "
            "is unreachable (1 of 2 engines)."
        ),
    ),
    "none takes work, and requests run there": (
        pool(engine(A, 40, state="draining", accepting=False, reservations=3)),
        "stop",
        "No engine takes work: a:8000 drains. 3 requests still run on engines that take no work.",
    ),
    "full, as another drains": (
        pool(
            engine(A, 99),
            away(B, "draining"),
            tenants=(tenant("a", 10), tenant("b", 10, oldest_wait_s=9), tenant("c", 7)),
        ),
        "wait",
        (
            "27 requests wait: 10 of a, 10 of b, 7 of c. Engine a:8000 is full, 99 % of its KV cache is reserved, "
            "and b:8000 drains (1 of 2 engines). The longest wait is 9 s."
        ),
    ),
    "two are full, and two are away": (
        pool(engine(A, 99), engine(B, 99), away(C, "down"), away("http://d", "drained"), queued=1),
        "wait",
        (
            "1 request waits: engines a:8000, b:8000 are full, 99 % of their KV cache is reserved, and c:8000#1 is "
            "unreachable, d is drained (2 of 4 engines)."
        ),
    ),
    "more tenants than are named": (
        pool(FULL, tenants=tuple(tenant(f"t{n}", 10 - n) for n in range(6))),
        "wait",
        (
            "45 requests wait: 10 of t0, 9 of t1, 8 of t2 and 18 of 3 more tenants. The engine is full, 98 % of the "
            "KV cache is reserved."
        ),
    ),
    "one tenant more": (
        pool(FULL, tenants=tuple(tenant(f"t{n}", 1) for n in range(4))),
        "wait",
        (
            "4 requests wait: 1 of t0, 1 of t1, 1 of t2 and 1 of 1 more tenant. The engine is full, 98 % of the KV "
            "cache is reserved."
        ),
    ),
    "a name with a colon is no list": (
        pool(FULL, tenants=(tenant("a:b", 2),)),
        "wait",
        "2 requests of tenant a:b wait: the engine is full, 98 % of the KV cache is reserved.",
    ),
    "several, and no engine": (
        pool(away(A, "down"), tenants=(tenant("a", 1), tenant("b", 1))),
        "stop",
        "2 requests wait: 1 of a, 1 of b. No engine takes work: a:8000 is unreachable.",
    ),
    "no room for the next one": (
        pool(engine(A, 70), tenants=(tenant("acme", 1),)),
        "wait",
        (
            "1 request of tenant acme waits: what is free is less than the next one needs, with 70 % of the KV cache "
            "reserved."
        ),
    ),
    "what is not trusted is not room": (
        pool(engine(A, 58, blocks_open=60), tenants=(tenant("acme", 1),)),
        "wait",
        "1 request of tenant acme waits: the engine is full, 97 % of the KV cache is reserved.",
    ),
    "no engine takes work": (
        pool(away(A, "draining"), away(B, "down", "connection refused"), tenants=(tenant("acme", 14),)),
        "stop",
        "14 requests of tenant acme wait, because no engine takes work: a:8000 drains, b:8000 is unreachable.",
    ),
    "no engine, and nobody waits": (
        pool(
            away(A, "down", "3 requests failed in a row, the last by reset"), away(C, "error", "no KV blocks")
        ),
        "stop",
        (
            "No engine takes work: a:8000 is down (3 requests failed in a row, the last by reset), c:8000#1 cannot be "
            "used (no KV blocks)."
        ),
    ),
    "all states": (
        pool(away(A, "suspended"), away(B, "busy"), away(C, "stalled"), away("http://d", "up")),
        "stop",
        (
            "No engine takes work: a:8000 answers without tokens, b:8000 is busy by its own word, c:8000#1 has "
            "requests and makes no tokens, d waits for the ledger."
        ),
    ),
    "not seen yet": (
        pool(away(A, "unknown")),
        "stop",
        "No engine takes work: a:8000 has not answered yet.",
    ),
    "a state of a later version": (
        pool(away(A, "asleep")),
        "stop",
        "No engine takes work: a:8000 is asleep.",
    ),
    "many": (
        pool(*(away(f"http://e{n}", "draining") for n in range(7))),
        "stop",
        "No engine takes work: e0 drains, e1 drains, e2 drains, e3 drains and 3 more.",
    ),
    "none is known": (pool(), "stop", "Nothing can start: no engine is known."),
    "none is known, and somebody waits": (
        pool(queued=1, oldest_wait_s=3.0),
        "stop",
        "1 request waits, because no engine is known. The longest wait is 3 s.",
    ),
    "closed": (
        pool(FULL, ledger_mode="closed", tenants=(tenant("acme", 2),)),
        "stop",
        "2 requests of tenant acme wait, because the shared ledger cannot be reached, and the mode is closed.",
    ),
    "closed, and nobody waits": (
        pool(FULL, ledger_mode="closed"),
        "stop",
        "Nothing is admitted: the shared ledger cannot be reached, and the mode is closed.",
    ),
    "local": (
        pool(engine(A, 30), ledger_mode="local", tenants=(tenant("acme", 2),)),
        "wait",
        "2 requests of tenant acme wait: the shared ledger is away, and each process may fill only its share.",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_sentence(name: str) -> None:
    shown, level, text = CASES[name]
    told = headline(shown)
    assert (told.level, told.text) == (level, text)
    assert bool(told.help) == (level in {"wait", "stop"}), "what would help, whenever something is the matter"


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (pool(engine(A), away(B, "down")), "1 of 2 engines takes no work: b:8000 is unreachable."),
        (
            pool(engine(A), away(B, "down"), away(C, "draining")),
            "2 of 3 engines take no work: b:8000 is unreachable, c:8000#1 drains.",
        ),
        (pool(engine(A, foreign=True)), "Requests wait inside a:8000: something reaches it beside kvgate."),
        (
            pool(engine(A, blocks_open=80)),
            "Filled less than it could be, for it preempted or serves others too: a:8000 to 80 %.",
        ),
        (pool(engine(A), ledger_mode="local"), "The shared ledger is away, mode local"),
        (pool(engine(A), ledger_mode="open"), "mode open: everything is admitted"),
    ],
)
def test_what_else_is_said(shown: PoolShown, said: str) -> None:
    told = headline(shown)
    assert told.level == "note"
    assert said in told.notes[0]


def test_an_engine_that_is_away_is_said_once() -> None:
    told = headline(pool(FULL, away(B, "down"), tenants=(tenant("acme", 1),)))
    assert told.level == "wait"
    assert told.text.endswith("and b:8000 is unreachable (1 of 2 engines).")
    assert told.notes == (), "it is a part of why"
    at_limit = tenant("acme", 1, limit=0.4, waits_for="its own limit")
    told = headline(pool(engine(A, 40), away(B, "down"), tenants=(at_limit,)))
    assert told.text.endswith("it is at its limit of 40 %.")
    assert told.notes == ("1 of 2 engines takes no work: b:8000 is unreachable.",), "it is none"


def test_what_helps_is_lower_limits_where_answers_are_short() -> None:
    waits = (tenant("acme", 1),)
    short = headline(pool(engine(A, 98, blocks_in_use=20), tenants=waits)).help
    assert short.startswith("Only 20 % of that is in use: answers end long before their max_tokens")
    parts = (Part("expected", 60), Part("at_risk", 38))
    unknown = headline(pool(engine(A, 98, blocks_in_use=20, parts=parts), tenants=waits)).help
    assert unknown.startswith("Only 20 % of that is in use: the rest is for answers that get longer")
    long = headline(pool(engine(A, 98, blocks_in_use=90), tenants=waits)).help
    assert long == headline(pool(engine(A, 98), tenants=waits)).help == "Add an engine, or lower max_tokens."


def test_what_helps_first_is_what_somebody_took_out() -> None:
    waits, drained = (tenant("acme", 1),), away(B, "draining")
    told = headline(pool(FULL, drained, tenants=waits)).help
    assert told == "Undrain b:8000, or lower max_tokens."
    short = headline(pool(engine(A, 98, blocks_in_use=20), drained, tenants=waits)).help
    assert short.endswith("Or undrain b:8000.")
    slots = headline(pool(engine(A, 50, seqs_reserved=8), drained, tenants=waits)).help
    assert slots.endswith("or undrain b:8000.")


def test_a_higher_limit_is_no_help_where_the_engines_are_full_too() -> None:
    acme = tenant("acme", 1, limit=0.4, waits_for="its own limit")
    assert headline(pool(engine(A, 60), tenants=(acme,))).help.startswith("A higher limit lets it go on")
    assert "take from the others" in headline(pool(FULL, tenants=(acme,))).help


def test_what_helps_when_none_takes_work() -> None:
    assert headline(pool(away(A, "draining"), away(B, "drained"))).help == "Undrain one of them."
    assert "in a moment" in headline(pool(away(A, "busy"))).help
    assert headline(pool(away(A, "down"), away(B, "draining"))).help.startswith("Start one, or undrain one.")


def test_a_forecast_counts_with_all_its_parts() -> None:
    parts = (Part("expected", 60), Part("at_risk", 35))
    told = headline(pool(engine(A, parts=parts), tenants=(tenant("acme", 1),)))
    assert told.text.endswith(
        "the engine is full, 95 % of the KV cache is reserved, or set aside for longer answers."
    )
    idle = headline(pool(engine(A, parts=parts)))
    assert idle.text == "Nobody waits. 60 % of the KV cache is reserved.", "what all others call reserved"


def test_in_mode_local_the_share_of_each_process_is_named() -> None:
    waits = (tenant("acme", 1),)
    told = headline(pool(engine(A, blocks_share=30), tenants=waits, ledger_mode="local"))
    assert told.text.endswith("each process may fill only its share, 30 of 100 blocks.")
    unequal = (engine(A, blocks_share=30), engine(B, blocks=50, blocks_share=15))
    told = headline(pool(*unequal, tenants=waits, ledger_mode="local"))
    assert told.text.endswith("each process may fill only its share.")


def test_what_an_engine_says_is_cut() -> None:
    told = headline(pool(away(A, "error", "x" * 5000))).text
    assert len(told) < 200


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (requests(1), "1 request"),
        (requests(12_000), "12,000 requests"),
        (time(0.6), "1 s"),
        (time(119.4), "119 s"),
        (time(600), "10 min"),
        (time(7500), "2 h 5 min"),
        (percent(0, 10), "0 %"),
        (percent(1, 0), "0 %"),
        (percent(999, 1000), "over 99 %"),
        (percent(1, 1000), "under 1 %"),
        (percent(10, 10), "100 %"),
        (share(0.4), "40 %"),
        (share(0.125), "12.5 %"),
        (amount(None), "–"),
        (amount(999), "999"),
        (amount(12_500), "12.5k"),
        (amount(2_000_000), "2M"),
        (listed([]), ""),
        (listed(["a", "b"]), "a, b"),
    ],
)
def test_words(told: str, said: str) -> None:
    assert told == said


def test_what_runs_on_an_engine_that_drains_is_not_nothing() -> None:
    drains = engine(B, 40, state="draining", accepting=False, reservations=1)
    told = headline(pool(engine(A), drains)).text
    assert told == (
        "Nobody waits. Nothing is reserved where work is taken. 1 request still runs on engines that take no work."
    )
