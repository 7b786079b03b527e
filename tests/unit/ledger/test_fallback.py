"""What a process decides alone while Redis is away."""

from __future__ import annotations

import pytest

from kvgate.ledger.base import Ask, Grant, Refusal
from kvgate.ledger.fallback import Fallback, OnFailure
from kvgate_policies.types import EngineLimits
from unit.ledger.conformance_forecasts import flat, soft, want
from unit.ledger.pool import OTHER_SHAPE, SHAPE, ask, cost, engine

LEASED_S, HOLD_S = 5.0, 60.0


def fallback(
    mode: OnFailure = OnFailure.LOCAL, live: int = 2, *engines: EngineLimits, floor: int = 0
) -> Fallback:
    """`floor` is in blocks of engine `a`, one sequence for each ten."""
    bounds = {"bypass_max": 8, "scan_depth": 4, "grants_max": 16}
    return Fallback(
        mode,
        live,
        engines or (engine(),),
        floors={"a": cost(floor, floor // 10)},
        leased_until_s=LEASED_S,
        orphan_hold_s=HOLD_S,
        **bounds,
    )


def with_room(live: int = 2, *engines: EngineLimits) -> Fallback:
    """In mode `local`, and the gauges show that nobody uses the engine."""
    alone = fallback(OnFailure.LOCAL, live, *engines)
    alone.gauge("a", 0, 0, 0.0)
    return alone


def queue(alone: Fallback, asked: Ask, place: tuple[int, int] | None = None) -> list[str]:
    """Reserve, expect no refusal; who starts."""
    assert alone.reserve(asked, place, 0.0) is None
    return started(alone)


def started(alone: Fallback) -> list[str]:
    return [request_id for request_id, decision in alone.take_decisions() if isinstance(decision, Grant)]


def held(request_id: str, blocks: int) -> Grant:
    return Grant(request_id, "a", SHAPE, cost(blocks), 0)


def test_local_fills_its_share_and_no_more():
    """Nine tenths of 100 blocks for two processes: 45."""
    alone = with_room()
    assert queue(alone, ask("r1", blocks=25)) == ["r1"]
    assert queue(alone, ask("r2", blocks=21)) == []
    assert queue(alone, ask("r3", blocks=20)) == ["r3"]


@pytest.mark.parametrize("live", range(1, 8))
def test_the_shares_of_all_processes_together_leave_a_tenth(live):
    together = 0
    for _ in range(live):
        alone = with_room(live, engine(seqs=10_000))
        for number in range(100):
            alone.reserve(ask(f"r{number}", blocks=1), None, 0.0)
        while alone.unfinished:
            alone.go_on()
        together += len(started(alone))
    assert 90 - live < together <= 90


def test_what_is_held_already_counts():
    alone = fallback(floor=40)
    alone.adopt(held("x", 40))
    assert queue(alone, ask("r", blocks=10)) == []
    alone.end("x", 0.0)
    assert started(alone) == ["r"]


def test_more_than_the_share_may_be_held_already():
    alone = fallback(floor=99)
    alone.adopt(held("x", 99))
    assert queue(alone, ask("r", blocks=1)) == []
    assert alone.view(0.0).engines[0].reserved == cost(99)


def test_what_is_held_on_an_engine_that_left_weighs_nothing():
    alone = with_room()
    alone.adopt(Grant("x", "gone", SHAPE, cost(40), 0))
    assert queue(alone, ask("r", blocks=45)) == ["r"]
    alone.renew({"x": cost(1)})
    alone.end("x", 0.0)


def test_larger_than_the_share_waits_and_larger_than_the_engine_never_fits():
    alone = with_room()
    assert queue(alone, ask("large", blocks=60)) == []
    assert queue(alone, ask("small", blocks=40)) == ["small"], "it holds nobody up"
    assert alone.reserve(ask("huge", blocks=101), None, 0.0) is Refusal.NEVER_FITS


def test_a_process_that_never_had_a_heartbeat_has_no_share():
    alone = with_room(0)
    assert queue(alone, ask("r", blocks=1)) == []


def test_beyond_what_redis_counts_it_needs_a_gauge_that_shows_room():
    """Others use more than their share: 80 of 100 blocks are in use, so 10 are left of nine tenths."""
    alone = fallback(floor=10)
    alone.adopt(held("x", 10))
    assert queue(alone, ask("r1", blocks=11)) == []
    alone.gauge("a", 80, None, 0.0)
    assert started(alone) == []
    assert queue(alone, ask("r2", blocks=10)) == ["r2"]
    alone.gauge("a", 95, None, 1.0)
    assert queue(alone, ask("r3", blocks=1)) == []
    alone.gauge("a", 20, None, 2.0)
    assert started(alone) == ["r1", "r3"]


def test_what_redis_counts_is_filled_up_again_however_full_the_engine_is():
    alone = fallback(floor=30)
    for name in ("x", "y", "z"):
        alone.adopt(held(name, 10))
    alone.gauge("a", 100, 10, 0.0)
    assert queue(alone, ask("r1", blocks=10)) == []
    alone.end("x", 0.5)
    assert started(alone) == ["r1"]


def test_what_was_left_free_for_a_while_is_not_filled_up_again():
    """The others may have been shown it free, and use it; not before the lease is over."""
    alone = fallback(floor=30)
    for name in ("x", "y", "z"):
        alone.adopt(held(name, 10))
    for name in ("x", "y", "z"):
        alone.end(name, LEASED_S - 0.1)
    assert started(alone) == []
    for name in ("r1", "r2", "r3"):
        assert queue(alone, ask(name, blocks=10)) == [name]
    for name in ("r1", "r2"):
        alone.end(name, LEASED_S)
    assert started(alone) == []
    assert alone.reserve(ask("r4", blocks=10), None, LEASED_S) is None
    assert started(alone) == []


def test_what_was_idle_when_the_lease_ran_out_is_not_filled_up_later():
    alone = fallback(floor=30)
    for name in ("x", "y", "z"):
        alone.adopt(held(name, 10))
        alone.end(name, LEASED_S - 1)
    assert alone.reserve(ask("r", blocks=10), None, LEASED_S + 1) is None
    assert started(alone) == []


def test_what_redis_has_forgotten_is_not_filled_up_again():
    alone = fallback(floor=30)
    for name in ("x", "y", "z"):
        alone.adopt(held(name, 10))
    alone.end("x", LEASED_S + HOLD_S - 1)
    assert queue(alone, ask("r1", blocks=10)) == ["r1"]
    assert alone.reserve(ask("r2", blocks=10), None, LEASED_S + HOLD_S) is None
    alone.end("y", LEASED_S + HOLD_S)
    assert started(alone) == []
    alone.gauge("a", 70, None, LEASED_S + HOLD_S)
    assert started(alone) == ["r2"]


def test_room_that_was_read_long_ago_is_not_used():
    alone = with_room()
    assert alone.reserve(ask("r", blocks=10), None, 60.0) is None
    assert started(alone) == []


def test_closed_starts_nothing_and_keeps_the_bound_of_the_queue():
    alone = fallback(OnFailure.CLOSED, 1)
    assert queue(alone, ask("r1", blocks=1, depth=1)) == []
    assert alone.reserve(ask("r2", blocks=1, depth=1), None, 0.0) is Refusal.QUEUE_FULL


def test_open_starts_everything_on_the_least_loaded():
    alone = fallback(OnFailure.OPEN, 3, engine("a"), engine("b", blocks=300))
    for number in range(8):
        assert queue(alone, ask(f"r{number}", blocks=60)) == [f"r{number}"]
    uses = {use.limits.engine_id: use.reserved.blocks for use in alone.view(0.0).engines}
    assert uses == {"a": 120, "b": 360}, "as their sizes, by what each holds"


def test_open_waits_for_an_engine_that_takes_work():
    alone = fallback(OnFailure.OPEN, 1, engine(accepting=False))
    assert queue(alone, ask("r")) == []
    alone.observe(engine())
    assert started(alone) == ["r"]


def test_no_engine_but_avoided_ones():
    alone = fallback()
    assert alone.reserve(ask("r", avoid=frozenset({"a"})), None, 0.0) is Refusal.NO_ENGINE
    alone.forget("a")
    assert alone.reserve(ask("r"), None, 0.0) is Refusal.NO_ENGINE


def test_places_are_kept_and_guesses_of_the_same_place_go_by_arrival():
    alone = fallback(OnFailure.CLOSED)
    for name, place in (("c", (7, 3)), ("a", (5, 9)), ("b", (7, 2))):
        queue(alone, ask(name, blocks=40), place)
    open_again = fallback(OnFailure.OPEN)
    open_again.observe(engine(accepting=False))
    for name, place in (("c", (7, 3)), ("a", (5, 9)), ("b", (7, 2))):
        queue(open_again, ask(name, blocks=40), place)
    open_again.observe(engine())
    assert started(open_again) == ["a", "b", "c"]
    assert alone.view(0.0).queued == 3


def test_the_view_shows_the_engines_as_they_are():
    alone = fallback()
    view = alone.view(0.0)
    assert [use.limits for use in view.engines] == [engine()]
    assert view.mode == "local"


@pytest.mark.parametrize("how", ["void", "forget"])
def test_what_an_engine_lost_is_given_back(how):
    alone = fallback(floor=40)
    alone.adopt(held("x", 40))
    getattr(alone, how)("a")
    alone.observe(engine())
    assert queue(alone, ask("r", blocks=45)) == []
    alone.gauge("a", 0, 0, 0.0)
    assert started(alone) == ["r"]


# forecasts


def grants(alone: Fallback) -> dict[str, Grant]:
    return {key: grant for key, grant in alone.take_decisions() if isinstance(grant, Grant)}


def test_a_share_decides_by_what_is_expected_and_hands_out_the_price_as_asked():
    """Of 45 blocks; each peak is a whole engine."""
    alone = with_room()
    asked = {f"r{number}": want(f"r{number}", flat(100, 15)) for number in range(4)}
    for each in asked.values():
        assert alone.reserve(each, None, 0.0) is None
    started = grants(alone)
    assert {name: grant.cost for name, grant in started.items()} == {
        f"r{number}": flat(100, 15) for number in range(3)
    }
    assert alone.view(0.0).engines[0].reserved == flat(300, 45) + cost(0, 2)
    alone.renew({"r0": flat(100, 10), "r1": flat(100, 5)})
    assert list(grants(alone)) == ["r3"]


def test_an_empty_share_takes_no_more_than_it_holds_at_the_risk_that_was_asked():
    alone = with_room()
    assert queue(alone, want("wide", flat(100, 40, 10))) == []
    assert queue(alone, want("more", flat(100, 46))) == []
    assert queue(alone, want("r", flat(100, 45))) == ["r"]


def test_a_guaranteed_one_is_asked_for_its_peak_beside_them():
    alone = with_room()
    assert queue(alone, want("r", soft(100, 10, 20))) == ["r"]
    assert queue(alone, ask("hard", blocks=26)) == []
    assert queue(alone, ask("small", blocks=25)) == ["small"]


def test_what_redis_counts_is_filled_up_again_by_what_is_expected():
    counted = soft(300, 12, 30, seqs=2)
    alone = Fallback(
        OnFailure.LOCAL, 2, [engine()], floors={"a": counted}, leased_until_s=LEASED_S, orphan_hold_s=HOLD_S,
        bypass_max=8, scan_depth=4, grants_max=16,
    )  # fmt: skip
    alone.adopt(Grant("x", "a", SHAPE, soft(300, 12, 30), 0))
    assert queue(alone, want("r", flat(100, 10))) == []
    alone.renew({"x": soft(300, 20, 18)})
    assert started(alone) == ["r"]
    assert queue(alone, want("s", flat(100, 1))) == []


def test_a_peak_that_no_engine_covers_never_fits_however_little_is_expected():
    alone = with_room()
    assert alone.reserve(want("huge", flat(101, 1)), None, 0.0) is Refusal.NEVER_FITS


def test_a_peak_that_some_engine_of_the_shape_does_not_cover_is_asked_for():
    alone = with_room(2, engine("a"), engine("b", blocks=400))
    alone.gauge("b", 0, 0, 0.0)
    assert queue(alone, want("r", flat(200, 1))) == [], "it must not start on a"
    assert queue(alone, want("s", flat(150, 1))) == ["s"]
    assert alone.view(0.0).engines[1].reserved == flat(150, 1)


def test_of_what_is_not_open_there_is_no_share():
    alone = with_room(1)
    alone.observe(engine(blocks_usable=10))
    assert queue(alone, ask("r", blocks=10)) == []
    assert queue(alone, ask("s", blocks=9)) == ["s"]


def test_a_price_that_replaces_another_is_handed_out():
    alone = with_room()
    assert queue(alone, Ask("r", "t", {OTHER_SHAPE: cost(5)}, 10)) == []
    alone.reprice("r", {SHAPE: flat(100, 30)})
    assert grants(alone)["r"].cost == flat(100, 30)
    alone.reprice("r", {SHAPE: flat(100, 31)})
    alone.reprice("never", {SHAPE: flat(100, 31)})


def test_open_starts_forecasts_too():
    alone = fallback(OnFailure.OPEN, 1, engine(blocks_usable=1))
    for number in range(5):
        assert queue(alone, want(f"r{number}", flat(100, 90, 50))) == [f"r{number}"]
