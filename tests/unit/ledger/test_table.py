"""A process's own requests in a shared ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvgate.ledger.base import Grant, Refusal
from kvgate.ledger.scripts import Place, Sums
from kvgate.ledger.table import DOUBTFUL_MAX, DOUBTFUL_TIMES, Entry, Table
from kvgate_policies.types import KVCost, PriorityClass
from unit.ledger.conformance_forecasts import flat, soft, want
from unit.ledger.pool import SHAPE, ask, cost


def hold(table: Table, entry: Entry, engine_id: str = "a", blocks: int = 10) -> None:
    grant = Grant(entry.request_id, engine_id, SHAPE, cost(blocks), entry.ticket.seq, entry.ask.tenant)
    table.hold(entry, grant, counted=grant.cost)


def test_each_reserve_has_an_id_of_its_own_on_the_wire():
    table = Table()
    first = table.add(ask("r"))
    table.drop(first)
    second = table.add(ask("r"))
    assert first.wire != second.wire
    assert (table.by_wire(first.wire), table.by_wire(second.wire)) == (None, second)


def test_an_id_that_is_here_and_a_negative_cost_are_errors():
    table = Table()
    table.add(ask("r"))
    with pytest.raises(ValueError, match="r is queued or holds"):
        table.add(ask("r"))
    with pytest.raises(ValueError, match="negative"):
        table.add(ask("s", blocks=-1))
    assert table.get("s") is None


def test_a_claim_has_the_sums_of_all_that_is_held():
    table = Table()
    for name, engine_id in (("r1", "a"), ("r2", "a"), ("r3", "b")):
        hold(table, table.add(ask(name)), engine_id)
    table.add(ask("waits"))
    hold(table, table.add(replace(ask("r4"), tenant="other")), "b")
    both = {("b", "tenant"): Sums(cost(10), 1), ("b", "other"): Sums(cost(10), 1)}
    assert table.claim() == {("a", "tenant"): Sums(cost(20, 2), 2), **both}
    table.strike("a")
    assert table.claim() == both


def test_what_a_claim_contains_is_counted_from_then_on():
    table = Table()
    entry = table.add(ask("r"))
    table.hold(entry, Grant("r", "a", SHAPE, cost(30), 0), counted=None)
    assert entry.counted is None
    table.claim()
    assert entry.counted == cost(30)


def test_what_redis_surely_counts_is_of_its_own_grants_and_of_claims_that_were_taken():
    table = Table()
    hold(table, table.add(ask("granted there")), blocks=10)
    here = table.add(ask("granted here"))
    table.hold(here, Grant("granted here", "a", SHAPE, cost(30), 0), counted=None)
    assert table.known() == {"a": cost(10)}
    table.claim()
    assert table.known() == {"a": cost(10)}, "it may have been lost"
    table.claim_taken()
    assert table.known() == {"a": cost(40, 2)}
    table.drop(here)
    assert table.known() == {"a": cost(10)}, "Redis may have been told"


def test_what_ended_without_redis_being_told_is_still_counted_there():
    table = Table()
    entry = table.add(ask("r"))
    hold(table, entry, blocks=10)
    table.drop(entry)
    table.ended_untold(entry)
    assert table.known() == {"a": cost(10)}
    table.claim()
    table.claim_taken()
    assert table.known() == {}


def test_what_was_given_back_since_a_claim_is_not_surely_counted():
    table = Table()
    entry = table.add(ask("r"))
    hold(table, entry, blocks=10)
    table.claim()
    entry.counted = cost(4)
    entry.give_back(cost(4))
    table.claim_taken()
    assert table.known() == {"a": cost(4)}


def test_who_waits_stands_in_the_order_of_arrival():
    table = Table()
    guess = table.add(ask("guess"))
    placed = table.add(ask("placed"))
    again = table.add(ask("again", seq=3))
    table.placed(placed, Place(7, 0))
    table.placed(guess, Place(9, 0))
    assert [entry.request_id for entry in table.waiting()] == ["again", "placed", "guess"]
    assert [entry.again().seq for entry in (again, placed, guess)] == [3, 7, 9]


def test_a_guess_comes_behind_all_that_was_seen_and_is_asked_for_anew():
    table = Table()
    table.saw(41)
    entry = table.add(ask("r"))
    assert (entry.ticket.seq, entry.again().seq) == (42, None)


def test_who_has_a_place_keeps_it_and_who_has_none_asks_for_what_is_left_of_its_time():
    table = Table()
    entry = table.add(replace(ask("r"), rank_in_ms=30_000), now_s=100.0)
    assert entry.again(now_s=110.0).rank_in_ms == 20_000
    assert entry.again(now_s=200.0).rank_in_ms == 0
    table.placed(entry, Place(7, 1234))
    again = entry.again(now_s=110.0)
    assert (again.seq, again.rank) == (7, 1234)


def test_a_rank_that_redis_did_not_give_yet_is_by_its_clock():
    table = Table(redis_ahead_s=1_000_000.0)
    entry = table.add(replace(ask("r"), rank_in_ms=5000), now_s=100.0)
    assert table.rank(entry) == 1_000_105_000
    table.placed(entry, Place(7, 1234))
    assert table.rank(entry) == 1234
    assert table.rank(table.add(ask("by arrival"))) == 0


def test_position_counts_own_and_estimates_the_others():
    table = Table()
    entries = [table.add(ask(f"r{number}")) for number in range(4)]
    assert [entry.ticket.position for entry in entries] == [0, 1, 2, 3]
    table.queued_everywhere = {"tenant": 40}
    assert [entry.ticket.position for entry in entries] == [0, 10, 20, 30]
    hold(table, entries[0])
    assert entries[0].ticket.position == 0


def test_position_is_that_in_the_flow():
    table = Table()
    first, ranked = table.add(ask("first")), table.add(ask("ranked"))
    other = table.add(replace(ask("other"), tenant="other"))
    batch = table.add(replace(ask("batch"), priority=PriorityClass.BATCH))
    last = table.add(ask("last"))
    table.placed(ranked, Place(ranked.ticket.seq, 9000))
    positions = [entry.ticket.position for entry in (first, last, ranked, other, batch)]
    assert positions == [0, 1, 2, 0, 0]
    assert (table.depth("tenant"), table.depth("other")) == (4, 1)


async def test_the_decision_stays_until_the_owner_ends_the_request():
    table = Table()
    granted, refused = table.add(ask("granted")), table.add(ask("refused"))
    hold(table, granted)
    table.drop(refused, Refusal.NEVER_FITS)
    assert await refused.ticket.granted() is refused.ticket.decision is Refusal.NEVER_FITS
    decision = await granted.ticket.granted()
    assert isinstance(decision, Grant)
    assert decision.request_id == "granted"
    table.drop(granted)
    with pytest.raises(RuntimeError, match="ended by its owner"):
        await granted.ticket.granted()


def test_withdrawals_in_doubt_are_repeated_and_bounded():
    table = Table()
    entry = table.add(ask("r"))
    entry.unsure = True
    table.drop(entry)
    given = [table.take_doubtful() for _ in range(DOUBTFUL_TIMES + 1)]
    assert given == [[entry.wire]] * DOUBTFUL_TIMES + [[]]
    for number in range(DOUBTFUL_MAX + 10):
        table.doubt(str(number))
    assert len(table.take_doubtful()) == DOUBTFUL_MAX


# forecasts


def hold_soft(table: Table, name: str, price: KVCost) -> Entry:
    entry = table.add(want(name, price))
    table.hold(entry, Grant(name, "a", SHAPE, price, entry.ticket.seq, "tenant"), counted=price)
    return entry


def renew(entry: Entry, price: KVCost) -> None:
    assert entry.grant is not None
    entry.grant = replace(entry.grant, cost=price)


def test_a_claim_has_what_is_expected_and_what_the_tenant_uses_request_by_request():
    table = Table()
    hold_soft(table, "r1", soft(90, 10, 20, 0))
    hold_soft(table, "r2", soft(90, 20, 10, 0, deviation=2))
    hold(table, table.add(ask("r3")), blocks=5)
    cost_of_all = soft(90, 10, 20, 0) + soft(90, 20, 10, 0, deviation=2) + cost(5)
    assert table.claim() == {("a", "tenant"): Sums(cost_of_all, 3, 20 + 20 + 5)}


def test_forecasts_that_together_are_their_peaks_are_claimed_so():
    table = Table()
    hold_soft(table, "r1", flat(90, 90))
    assert table.claim() == {("a", "tenant"): Sums(cost(90), 1)}


def test_of_a_claim_that_may_be_lost_and_the_one_before_the_less_is_surely_counted():
    table = Table()
    falls, grows = hold_soft(table, "r1", flat(90, 30)), hold_soft(table, "r2", soft(90, 5, 10))
    renew(falls, flat(90, 20))
    renew(grows, soft(90, 8, 9, 10))
    table.claim()
    assert table.known() == {"a": flat(90, 20) + soft(90, 5, 9)}
    renew(falls, flat(90, 25))
    table.claim()
    assert table.known() == {"a": flat(90, 20) + soft(90, 5, 9)}, "the first may have arrived, or none"
    table.claim_taken()
    assert table.known() == {"a": flat(90, 25) + soft(90, 8, 9, 10)}


def test_one_that_ends_untold_is_counted_by_the_less_too():
    table = Table()
    entry = hold_soft(table, "r", flat(90, 30))
    renew(entry, flat(90, 20))
    table.claim()
    table.drop(entry)
    table.ended_untold(entry)
    assert table.known() == {"a": flat(90, 20)}


def test_what_was_told_to_be_less_is_at_each_point_no_more():
    table = Table()
    entry = hold_soft(table, "r", soft(90, 30, 20))
    entry.give_back(soft(80, 10, 25, 5))
    assert table.known() == {"a": soft(80, 10, 20)}
