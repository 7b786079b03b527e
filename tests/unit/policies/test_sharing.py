"""Whose reservation has the blocks of a beginning: always somebody's, and of nobody who has gone."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate_policies.forecast_request import Outlook, request_occupancy
from kvgate_policies.forecast_survival import never_ends, prior
from kvgate_policies.kv_cost import price
from kvgate_policies.kv_groups import KVGroup
from kvgate_policies.occupancy import guaranteed
from kvgate_policies.sharing import (
    WHOLE_BLOCKS,
    Beginnings,
    Chain,
    Parts,
    Sharer,
    chain_of,
    discounted,
    reshared,
    shareable,
)
from kvgate_policies.types import EngineShape, KVCost

SHAPE = EngineShape(block_size=4, max_model_len=8192, prefix_caching=True)


def chain(tokens: Sequence[int], *apart: bytes, salt: bytes = b"s") -> Chain:
    return chain_of(salt, apart, memoryview(array("I", tokens)).cast("B"), SHAPE.block_size)


def depth(links: Chain) -> int:
    return sum(link.blocks for link in links)


def common(one: Chain, other: Chain) -> int:
    return depth(tuple(mine for mine, theirs in zip(one, other, strict=False) if mine.key == theirs.key))


# Chains.


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (257, 64)])
def test_the_block_of_the_last_token_is_never_a_part(tokens: int, blocks: int) -> None:
    assert depth(chain(range(tokens))) == blocks


def test_prompts_have_in_common_what_they_begin_with() -> None:
    one = chain([*range(40), 1, 2, 3, 4, 5])
    assert common(one, chain([*range(40), 9, 9, 9, 9, 9])) == 10
    assert common(one, chain([7, *range(1, 40), 1, 2, 3, 4, 5])) == 0
    assert common(one, chain(range(38))) == 9
    assert common(chain([1] * 9), chain([1] * 13)) == 2


def test_another_salt_model_or_cache_salt_is_another_beginning() -> None:
    tokens = range(40)
    assert common(chain(tokens, b"m", b"x"), chain(tokens, b"m", b"x")) == 9
    for other in (chain(tokens, b"m", b""), chain(tokens, b"mx", b""), chain(tokens, b"", b"mx")):
        assert common(chain(tokens, b"m", b"x"), other) == 0
    assert common(chain(tokens, b"m", b"x"), chain(tokens, b"m", b"x", salt=b"t")) == 0


@pytest.mark.parametrize("blocks", [63, 64, 65, 66, 127, 128, 131, 132, 1000, 30_000])
def test_long_chains_have_few_links_and_lose_little(blocks: int) -> None:
    links = chain(range(blocks * 4 + 1))
    assert blocks * (1 - 2 / WHOLE_BLOCKS) <= depth(links) <= blocks
    assert len(links) <= 64 + 32 * 10


def test_half_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="7 bytes"):
        chain_of(b"s", (), memoryview(b"1234567"), 4)


@pytest.mark.parametrize(
    ("change", "may"),
    [
        ({}, True),
        ({"prefix_caching": False}, False),
        ({"speculative_tokens": 1}, False),
        ({"blocks_opaque": 9}, False),
        ({"groups": (KVGroup(block_size=4),)}, False),
    ],
)
def test_only_engines_that_hold_a_beginning_once(change: dict[str, object], may: bool) -> None:
    assert shareable(replace(SHAPE, **change)) is may  # type: ignore[arg-type]


# Bearers and guests.


def test_nobody_is_a_guest_before_a_first_token() -> None:
    at: Beginnings[Sharer] = Beginnings()
    first, second, third = (Sharer(chain([*range(20), n, n])) for n in range(3))
    assert at.join(first) == at.join(second) == []
    assert at.saved_blocks == 0
    assert at.shows(first) == []
    assert at.join(third) == [first]
    assert (first.parts, second.parts, third.parts) == (Parts(pledged=5), Parts(), Parts(lent=5))
    assert at.shows(second) == []
    assert (second.parts, at.saved_blocks) == (Parts(lent=5), 10)
    assert at.shows(second) == []


def test_who_comes_second_to_its_first_token_is_the_guest() -> None:
    at: Beginnings[Sharer] = Beginnings()
    first, second = (Sharer(chain([*range(20), n, n])) for n in range(2))
    at.join(first)
    at.join(second)
    at.shows(second)
    assert at.shows(first) == [second]
    assert (first.parts, second.parts) == (Parts(lent=5), Parts(pledged=5))


def test_an_heir_takes_over_what_it_holds_and_the_rest_is_gone() -> None:
    at: Beginnings[Sharer] = Beginnings()
    long, short, middle = Sharer(chain(range(41))), Sharer(chain(range(13))), Sharer(chain(range(21)))
    at.join(long)
    at.shows(long)
    at.join(short)
    at.join(middle)
    assert long.parts == Parts(pledged=5)
    assert at.leave(long) is middle
    assert (middle.parts, short.parts) == (Parts(pledged=5), Parts(lent=3))
    assert at.leave(middle) is short
    assert short.parts == Parts(pledged=3)
    assert at.leave(short) is None
    assert (len(at), at.saved_blocks) == (0, 0)


def test_an_heir_that_has_them_already_reserves_no_more() -> None:
    at: Beginnings[Sharer] = Beginnings()
    first, guest, reading = (Sharer(chain([*range(20), n, n])) for n in range(3))
    at.join(first)
    at.join(reading)
    at.shows(first)
    at.join(guest)
    assert at.leave(first) is reading
    assert (reading.parts, guest.parts) == (Parts(pledged=5), Parts(lent=5))


def check(at: Beginnings[Sharer], running: list[Sharer]) -> None:
    """What is reserved of beginnings is never less than the blocks that all of them are."""
    blocks = {link.key: link.blocks for one in running for link in one.chain}
    reserved = sum(depth(one.chain) - one.parts.lent for one in running)
    assert reserved >= sum(blocks.values())
    assert at.saved_blocks == sum(one.parts.lent for one in running)
    assert len(at) == len(blocks)
    for one in running:
        assert one.parts.lent >= 0
        assert one.parts.pledged >= 0
        assert one.parts.both <= depth(one.chain)
    if all(one.live for one in running):
        assert reserved == sum(blocks.values())


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_somebody_always_has_them_reserved(seed: int) -> None:
    rng, at, running = random.Random(seed), Beginnings[Sharer](), list[Sharer]()
    for _ in range(80):
        what = rng.random()
        before = {one: one.parts for one in running}
        changed: list[Sharer] = []
        if what < 0.4 or not running:
            one = Sharer(chain([rng.randrange(2) for _ in range(2)] * 2 * rng.randint(1, 6) + [9]))
            changed = [*at.join(one), one]
            running.append(one)
        elif what < 0.7:
            one = rng.choice(running)
            changed = [*at.shows(one), one]
        else:
            one = running.pop(rng.randrange(len(running)))
            heir = at.leave(one)
            changed = [one] if heir is None else [one, heir]
        assert all(one.parts == parts for one, parts in before.items() if one not in changed)
        check(at, running)
    for one in running:
        at.leave(one)
    assert (len(at), at.saved_blocks) == (0, 0)


# What is reserved by it.

PEAK = price(SHAPE, (100,), 60, 1)


def test_a_guaranteed_reservation_is_smaller_by_what_is_lent() -> None:
    assert reshared(PEAK, Parts(), Parts(lent=20)) == replace(PEAK, blocks=PEAK.blocks - 20)
    assert reshared(PEAK, Parts(), Parts(pledged=20)) == PEAK
    assert reshared(replace(PEAK, blocks=PEAK.blocks - 20), Parts(lent=20), Parts(pledged=20)) == PEAK


@pytest.mark.parametrize("curve", [never_ends(), prior()], ids=["known", "unknown"])
@pytest.mark.parametrize("apart", [1, 12, 24])
@pytest.mark.parametrize("generated", [0, 1, 30])
def test_what_is_left_of_a_forecast_is_never_below_what_it_is_made_anew(
    curve, apart: int, generated: int
) -> None:
    outlook = Outlook((100,), 60)
    cost = replace(PEAK, expected=request_occupancy(curve, outlook, SHAPE, generated))
    anew = request_occupancy(curve, outlook, SHAPE, generated, apart)
    guest = reshared(cost, Parts(), Parts(lent=apart))
    assert guest.blocks == cost.blocks - apart
    assert guest.expected is not None
    assert cost.expected is not None
    for left, right, whole in zip(guest.expected.means, anew.means, cost.expected.means, strict=True):
        assert right <= left <= whole
    bearer = reshared(cost, Parts(), Parts(pledged=apart))
    assert bearer.expected == guest.expected + guaranteed(apart)
    heir = reshared(guest, Parts(lent=apart), Parts(pledged=apart))
    assert heir == bearer


def test_a_bearer_of_more_keeps_what_it_bore() -> None:
    cost = replace(PEAK, expected=request_occupancy(prior(), Outlook((100,), 60), SHAPE))
    steps = [Parts(), Parts(pledged=3), Parts(lent=2, pledged=3), Parts(pledged=5), Parts(pledged=24)]
    for before, after in pairwise(steps):
        cost = reshared(cost, before, after)
        assert cost.expected is not None
        assert min(cost.expected.means) >= guaranteed(after.pledged).means[0]
    assert cost.blocks == PEAK.blocks


def test_what_is_lent_is_not_read_either() -> None:
    assert discounted(PEAK, 20, SHAPE.block_size) == replace(PEAK, blocks=PEAK.blocks - 20, prefill_tokens=20)
    assert discounted(PEAK, 0, SHAPE.block_size) == PEAK


def test_what_could_be_lent_is_what_somebody_has_read() -> None:
    at: Beginnings[Sharer] = Beginnings()
    first, asked = Sharer(chain(range(21))), chain([*range(12), 9, 9, 9])
    at.join(first)
    assert at.live_blocks(asked) == 0
    at.shows(first)
    assert (at.live_blocks(asked), at.live_blocks(first.chain), at.live_blocks(())) == (3, 5, 0)
    at.leave(first)
    assert at.live_blocks(asked) == 0


def test_all_of_it_comes_back_to_zero() -> None:
    cost = replace(PEAK, expected=request_occupancy(prior(), Outlook((100,), 60), SHAPE))
    total = KVCost(0, 0, 0)
    for parts in (Parts(lent=7), Parts(pledged=7)):
        total += reshared(cost, Parts(), parts)
    for parts in (Parts(lent=7), Parts(pledged=7)):
        total -= reshared(cost, Parts(), parts)
    assert total == KVCost(0, 0, 0)
