"""How much of an engine a process may use that is cut off from the shared ledger."""

from __future__ import annotations

import pytest

from kvgate.ledger.share import READING_S_MAX, Share
from unit.ledger.conformance_forecasts import flat, soft
from unit.ledger.pool import cost, engine

ENGINE = engine(blocks=100, seqs=50)


def share(processes: int = 2, floor: int = 0, held: int = 0) -> Share:
    """`held` blocks are in requests of ten."""
    made = Share(processes, cost(floor, floor // 10))
    for number in range(held // 10):
        made.hold(f"x{number}", cost(10), is_new=False)
    return made


def blocks(of: Share, now_s: float = 0.0) -> int:
    return of.limits(ENGINE, now_s).blocks


def test_without_a_reading_it_is_what_redis_counts_anyway():
    assert blocks(share(floor=30, held=30)) == 30
    assert blocks(share(floor=0)) == 0


def test_never_more_than_the_share():
    """Nine tenths of 100 blocks for two processes: 45."""
    of = share(floor=60, held=60)
    assert blocks(of) == 45
    of.read(ENGINE, 0, 0, 0.0)
    assert blocks(of) == 45


def test_a_process_that_was_the_only_one_needs_no_reading():
    assert blocks(share(processes=1)) == 90


def test_prefill_tokens_are_divided_alike():
    assert share(processes=3).limits(ENGINE, 0.0).prefill_tokens == ENGINE.prefill_tokens * 90 // 300


def test_a_reading_that_shows_room_lets_it_grow():
    of = share(floor=10, held=10)
    of.read(ENGINE, 70, None, 0.0)
    assert blocks(of) == 10 + 20


def test_an_engine_in_full_use_leaves_the_floor():
    of = share(floor=30, held=30)
    of.read(ENGINE, 100, 10, 0.0)
    of.end("x0")
    assert blocks(of) == 30


def test_sequences_count_as_large_as_ours_will_be():
    """Eight that have just begun use 40 blocks, and will use 80."""
    of = share(floor=10, held=10)
    of.read(ENGINE, 40, 8, 0.0)
    assert blocks(of) == 10 + 10


def test_sequence_slots_are_bounded_like_blocks():
    of = share(processes=2, floor=10, held=10)
    of.read(ENGINE, 0, 43, 0.0)
    assert of.limits(ENGINE, 0.0).seqs == 1 + 2


def test_what_was_granted_since_the_reading_before_counts_beside_the_reading():
    of = share(floor=10, held=10)
    of.hold("new", cost(10), is_new=True)
    of.read(ENGINE, 70, None, 0.0)
    assert blocks(of) == 10 + 20, "20 are held: only ten more"
    of.read(ENGINE, 70, None, 1.0)
    assert blocks(of, 1.0) == 20 + 20, "by now it is in the 70"


def test_an_old_reading_counts_for_nothing():
    of = share(floor=10, held=10)
    of.read(ENGINE, 20, None, 0.0)
    assert (blocks(of, READING_S_MAX), blocks(of, READING_S_MAX + 0.1)) == (45, 10)
    alone = share(processes=1)
    alone.read(ENGINE, 80, None, 0.0)
    assert (blocks(alone), blocks(alone, READING_S_MAX + 0.1)) == (10, 90)


def test_the_floor_sinks_when_less_than_half_of_it_is_in_use():
    of = share(floor=40, held=40)
    for number in range(2):
        of.end(f"x{number}")
        assert not of.sink()
    assert blocks(of) == 40
    of.end("x2")
    assert of.sink()
    assert blocks(of) == 10
    of.hold("new", cost(10), is_new=True)
    assert not of.sink()
    assert blocks(of) == 10, "it does not rise again"


@pytest.mark.parametrize("what", ["blocks", "seqs"])
def test_the_floor_sinks_by_blocks_and_by_sequences(what):
    of = Share(1, cost(20, 4))
    of.hold("x", cost(20, 1) if what == "seqs" else cost(8, 4), is_new=False)
    assert of.sink()


def test_an_engine_that_restarted_has_nothing_of_ours():
    of = share(floor=40, held=40)
    of.read(ENGINE, 40, None, 0.0)
    of.void()
    assert blocks(of) == 0
    of.read(ENGINE, 0, 0, 1.0)
    assert blocks(of, 1.0) == 45


def test_a_cost_that_changes_is_counted_as_it_is():
    of = share(floor=0, held=10)
    of.change("x0", cost(30))
    of.change("unknown", cost(30))
    of.read(ENGINE, 80, None, 0.0)
    assert blocks(of) == 40


# forecasts


def test_a_floor_of_forecasts_is_what_is_expected_of_them_together():
    """At the point where most is expected of all, not the most of each."""
    counted = soft(1000, 10, 30, 0) + soft(1000, 30, 10, 0)
    assert blocks(Share(2, counted)) == 40


def test_what_is_held_is_counted_as_expected():
    of = Share(1, flat(2000, 40))
    for name in ("x", "y"):
        of.hold(name, flat(1000, 20), is_new=False)
    assert not of.sink()
    of.change("x", flat(1000, 5))
    assert not of.sink(), "25 of 40"
    of.end("y")
    assert of.sink()
    of.void()
    assert of.held == cost(0, 0)


def test_a_reading_lets_it_grow_beyond_what_is_expected():
    of = Share(2, flat(1000, 10))
    of.hold("x", flat(1000, 10), is_new=False)
    of.read(ENGINE, 70, None, 0.0)
    assert blocks(of) == 10 + 20


def test_sequences_count_as_large_as_ours_are_expected_to_be():
    of = Share(2, flat(1000, 10))
    of.hold("x", soft(1000, 2, 10), is_new=False)
    of.read(ENGINE, 40, 8, 0.0)
    assert blocks(of) == 10 + 10


def test_the_share_is_one_of_what_is_open():
    of = share(processes=1)
    assert of.limits(engine(blocks_usable=50), 0.0) == engine(blocks=45, seqs=14, prefill_tokens=900)


def test_what_is_held_is_the_sum_of_each_and_comes_back_to_nothing():
    of = Share(1)
    of.hold("x", flat(90, 7.5, 2), is_new=True)
    of.hold("y", cost(5, 1, 3), is_new=True)
    of.change("x", soft(90, 1, 2))
    assert of.held == soft(90, 1, 2) + cost(5, 1, 3)
    of.end("x")
    of.end("y")
    of.end("never")
    assert of.held == cost(0, 0)
