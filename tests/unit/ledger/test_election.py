"""Which process of many does what one is enough for."""

from __future__ import annotations

from collections import Counter

import pytest

from kvgate.ledger.election import rank_of

THINGS = [f"http://gpu-{number}:8000" for number in range(1000)]


@pytest.mark.parametrize("processes", [1, 2, 6, 64])
def test_each_thing_falls_to_one_and_they_are_spread(processes: int) -> None:
    shares = Counter(rank_of(thing, processes) for thing in THINGS)
    assert set(shares) == set(range(processes))
    assert max(shares.values()) <= 2.5 * len(THINGS) / processes


def test_when_one_more_comes_only_what_falls_to_it_moves() -> None:
    moved = {thing for thing in THINGS if rank_of(thing, 6) != rank_of(thing, 7)}
    assert moved == {thing for thing in THINGS if rank_of(thing, 7) == 6}
    assert len(moved) < 250


def test_without_processes_there_is_nobody() -> None:
    with pytest.raises(ValueError, match="empty"):
        rank_of("x", 0)
