"""A process's own requests in a shared ledger."""

from __future__ import annotations

import pytest

from kvgate.ledger.base import Grant, Refusal
from kvgate.ledger.scripts import Sums
from kvgate.ledger.table import DOUBTFUL_MAX, DOUBTFUL_TIMES, Entry, Table
from unit.ledger.pool import SHAPE, ask, cost


def hold(table: Table, entry: Entry, engine_id: str = "a", blocks: int = 10) -> None:
    grant = Grant(entry.request_id, engine_id, SHAPE, cost(blocks), entry.ticket.seq)
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
    assert table.claim() == {"a": Sums(cost(20, 2), 2), "b": Sums(cost(10), 1)}
    table.strike("a")
    assert table.claim() == {"b": Sums(cost(10), 1)}


def test_what_a_claim_contains_is_counted_from_then_on():
    table = Table()
    entry = table.add(ask("r"))
    table.hold(entry, Grant("r", "a", SHAPE, cost(30), 0), counted=None)
    assert entry.counted is None
    table.claim()
    assert entry.counted == cost(30)


def test_who_waits_stands_in_the_order_of_the_queue():
    table = Table()
    guess = table.add(ask("guess"))
    placed = table.add(ask("placed"))
    again = table.add(ask("again", seq=3))
    table.placed(placed, 7)
    table.placed(guess, 9)
    assert [entry.request_id for entry in table.waiting()] == ["again", "placed", "guess"]
    assert [entry.again().seq for entry in (again, placed, guess)] == [3, 7, 9]


def test_a_guess_comes_behind_all_that_was_seen_and_is_asked_for_anew():
    table = Table()
    table.saw(41)
    entry = table.add(ask("r"))
    assert (entry.ticket.seq, entry.again().seq) == (42, None)


def test_who_is_asked_for_again_is_not_refused_for_the_depth():
    assert Table().add(ask("r", depth=0)).again().queue_depth_max > 1_000_000


def test_position_counts_own_and_estimates_the_others():
    table = Table()
    entries = [table.add(ask(f"r{number}")) for number in range(4)]
    assert [entry.ticket.position for entry in entries] == [0, 1, 2, 3]
    table.queued_everywhere = 40
    assert [entry.ticket.position for entry in entries] == [0, 10, 20, 30]
    hold(table, entries[0])
    assert entries[0].ticket.position == 0


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
