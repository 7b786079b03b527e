from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate_policies.occupancy import GRID, SCALE, Occupancy
from kvgate_policies.placement import fits, pin, place
from kvgate_policies.types import ZERO_COST, EngineLimits, EngineShape, EngineUse, KVCost

SHAPE = EngineShape(block_size=16, max_model_len=1600)
OTHER = EngineShape(block_size=32, max_model_len=1600)
NOBODY: frozenset[str] = frozenset()


def engine(
    name: str,
    used: KVCost = ZERO_COST,
    *,
    reservations: int | None = None,
    blocks: int = 100,
    seqs: int = 10,
    accepting: bool = True,
    pinned_by: str | None = None,
    shape: EngineShape = SHAPE,
) -> EngineUse:
    limits = EngineLimits(name, shape, blocks=blocks, seqs=seqs, prefill_tokens=1000, accepting=accepting)
    held = (0 if used == ZERO_COST else 1) if reservations is None else reservations
    return EngineUse(limits, used, held, pinned_by)


def cost(blocks: int = 10, seqs: int = 1, prefill_tokens: int = 100) -> KVCost:
    return KVCost(blocks, seqs, prefill_tokens)


def placed(
    wanted: KVCost, *engines: EngineUse, me: str = "me", avoid: frozenset[str] = NOBODY, tie: int = 0
) -> str | None:
    return place({SHAPE: wanted}, engines, me, avoid, tie)


@pytest.mark.parametrize(
    ("wanted", "used", "fitting"),
    [
        (cost(40), cost(60), True),
        (cost(41), cost(60), False),
        (cost(1, seqs=9), cost(1), True),
        (cost(1, seqs=10), cost(1), False),
        (cost(1, prefill_tokens=900), cost(1), True),
        (cost(1, prefill_tokens=901), cost(1), False),
        (cost(1, prefill_tokens=5000), cost(1, prefill_tokens=0), True),
        (cost(1, prefill_tokens=5000), cost(1, prefill_tokens=1), False),
    ],
)
def test_fits_by_blocks_slots_and_outstanding_prefill(wanted: KVCost, used: KVCost, fitting: bool) -> None:
    assert fits(wanted, engine("a", used)) is fitting


def test_engine_without_reservations_takes_all_it_covers() -> None:
    leftover = cost(50, seqs=5, prefill_tokens=999)
    assert fits(cost(100, seqs=10, prefill_tokens=10**6), engine("a", leftover, reservations=0))
    assert not fits(cost(101), engine("a"))
    assert not fits(cost(1, seqs=11), engine("a"))


def test_a_forecast_never_keeps_out_what_its_peak_would_not() -> None:
    wide = Occupancy((30 * SCALE,) * len(GRID), (30**2 * SCALE,) * len(GRID))
    held = KVCost(60, 1, 0, wide)
    assert fits(KVCost(40, 1, 0, wide), engine("a", held))
    assert fits(cost(40, prefill_tokens=0), engine("a", held))
    assert not fits(KVCost(41, 1, 0, wide), engine("a", held))


def test_the_load_of_forecasts_is_never_above_that_of_their_peaks() -> None:
    wide = Occupancy((30 * SCALE,) * len(GRID), (30**2 * SCALE,) * len(GRID))
    by_peaks, by_forecast = engine("a", cost(45)), engine("b", KVCost(44, 1, 0, wide))
    assert placed(cost(10), by_peaks, by_forecast) == "b"


def test_overdrawn_engine_takes_nothing() -> None:
    assert not fits(cost(0, 0, 0), engine("a", cost(120)))


def test_engine_that_takes_no_work_fits_nothing() -> None:
    assert not fits(cost(1), engine("a", accepting=False))
    assert placed(cost(1), engine("a", accepting=False)) is None


def test_least_loaded_after_placement_wins() -> None:
    assert placed(cost(10), engine("a", cost(50)), engine("b", cost(40))) == "b"
    # Five of ten slots count for more than forty of a hundred blocks.
    assert placed(cost(10), engine("a", cost(40, seqs=1)), engine("b", cost(10, seqs=5))) == "a"


def test_load_is_relative_to_the_engine() -> None:
    big, small = engine("big", cost(100), blocks=1000), engine("small", cost(20), blocks=100)
    assert placed(cost(10), big, small) == "big"


def test_price_is_that_of_the_engine_s_own_shape() -> None:
    engines = [engine("a", cost(50)), engine("b", cost(50), shape=OTHER)]
    assert place({SHAPE: cost(20), OTHER: cost(10)}, engines, "me", NOBODY, 0) == "b"
    assert place({SHAPE: cost(60), OTHER: cost(10)}, engines, "me", NOBODY, 0) == "b"
    assert place({SHAPE: cost(20)}, engines, "me", NOBODY, 0) == "a"
    assert place({}, engines, "me", NOBODY, 0) is None


def forecast(peak: int, *means: int, variance: int = 0) -> KVCost:
    """With a mean for each point of the grid, the last one for all that follow."""
    filled = (*means, *(means[-1:] * (len(GRID) - len(means))))
    return KVCost(
        peak, 1, 0, Occupancy(tuple(SCALE * mean for mean in filled), (SCALE * variance,) * len(GRID))
    )


def test_load_of_forecasts_is_what_the_inequality_counts() -> None:
    late, soon = forecast(100, 10, 10, 10, 70), forecast(100, 60, 60, 0)
    assert placed(forecast(100, 30, 30, 30, 0), engine("late", late), engine("soon", soon)) == "late"
    assert placed(forecast(100, 1, 1, 1, 29), engine("late", late), engine("soon", soon)) == "soon"
    wide = forecast(100, 50, variance=64)
    assert placed(cost(10), engine("wide", wide), engine("b", cost(59))) == "b"


def test_soonest_with_forecasts_is_where_least_is_missing() -> None:
    full, fuller = forecast(100, 95, 95, 0), forecast(100, 99, 99, 0)
    assert pinned_for(cost(20), engine("fuller", fuller), engine("full", full)) == "full"


def test_preferred_engine_that_does_not_fit_is_passed_over() -> None:
    engines = [engine("a", cost(95)), engine("b", cost(30)), engine("c", cost(20))]
    assert place({SHAPE: cost(10)}, engines, "me", NOBODY, 0, prefer=("a", "b")) == "b"
    assert place({SHAPE: cost(10)}, engines, "me", NOBODY, 0, prefer=("gone",)) == "c"
    assert place({SHAPE: cost(10)}, engines, "me", frozenset({"b"}), 0, prefer=("b",)) == "c"


def test_equals_take_turns() -> None:
    engines = [engine(name) for name in "abc"]
    turns = Counter(placed(cost(), *engines, tie=tie) for tie in range(30))
    assert turns == {"a": 10, "b": 10, "c": 10}


def test_ties_are_among_equals_only() -> None:
    engines = [engine("busy", cost(50)), engine("a"), engine("b")]
    assert {placed(cost(), *engines, tie=tie) for tie in range(10)} == {"a", "b"}


def test_pinned_engine_is_open_to_its_own_request_only() -> None:
    pinned = engine("a", pinned_by="head")
    assert placed(cost(), pinned, me="other") is None
    assert placed(cost(), pinned, me="head") == "a"


def test_avoided_engine_is_not_chosen() -> None:
    assert placed(cost(), engine("a"), engine("b", cost(80)), avoid=frozenset({"a"})) == "b"
    assert placed(cost(), engine("a"), avoid=frozenset({"a"})) is None


def pinned_for(wanted: KVCost, *engines: EngineUse, avoid: frozenset[str] = NOBODY) -> str | None:
    return pin({SHAPE: wanted}, engines, avoid)


def test_pin_takes_the_smallest_missing_part() -> None:
    assert pinned_for(cost(50), engine("a", cost(90)), engine("b", cost(80))) == "b"
    # 200 of 1000 blocks are missing, against 30 of 100.
    big = engine("big", cost(950), blocks=1000)
    assert pinned_for(cost(50), big, engine("small", cost(80))) == "big"


def test_pin_counts_slots_and_prefill_as_missing() -> None:
    assert pinned_for(cost(1, seqs=5), engine("a", cost(1, seqs=9)), engine("b", cost(1, seqs=7))) == "b"
    late = engine("late", cost(10, prefill_tokens=900))
    soon = engine("soon", cost(20, prefill_tokens=100))
    assert pinned_for(cost(1, prefill_tokens=950), late, soon) == "soon"
    # A prompt above the bound waits for the outstanding ones only, not for its own size.
    assert (
        pinned_for(cost(30, prefill_tokens=50_000), soon, engine("full", cost(95, prefill_tokens=0)))
        == "soon"
    )


def test_pin_prefers_the_less_loaded_of_equally_near() -> None:
    a = engine("a", cost(60, seqs=9), blocks=100)
    b = engine("b", cost(60, seqs=2), blocks=100)
    assert pinned_for(cost(50), a, b) == "b"


def test_pin_takes_the_first_of_equals_every_time() -> None:
    assert pinned_for(cost(50), engine("a", cost(60)), engine("b", cost(60))) == "a"


def test_equal_fractions_of_unequal_engines_are_equal() -> None:
    engines = [engine("a", cost(29), blocks=100), engine("b", cost(88), blocks=300)]
    assert {placed(cost(1, 0), *engines[:2], tie=tie) for tie in range(4)} == {"b"}
    engines[1] = engine("b", cost(89), blocks=300)
    assert {placed(cost(1, 0), *engines[:2], tie=tie) for tie in range(4)} == {"a", "b"}


def test_pin_never_takes_an_engine_that_could_not_serve() -> None:
    assert pinned_for(cost(101), engine("a")) is None
    assert pinned_for(cost(50), engine("a", accepting=False)) is None
    assert pinned_for(cost(50), engine("a", pinned_by="x")) is None
    assert pinned_for(cost(50), engine("a"), avoid=frozenset({"a"})) is None
    assert pin({OTHER: cost(1)}, [engine("a")], NOBODY) is None


costs = st.builds(KVCost, st.integers(0, 130), st.integers(0, 12), st.integers(0, 2000))
engines_of_a_pool = st.lists(
    st.builds(
        lambda used, reservations, accepting, pinned_by: (used, reservations, accepting, pinned_by),
        costs,
        st.integers(0, 5),
        st.booleans(),
        st.sampled_from([None, "me", "other"]),
    ),
    max_size=5,
)


@given(costs, engines_of_a_pool, st.integers(0, 100))
def test_placed_engine_fits_and_is_least_loaded(
    wanted: KVCost, drawn: list[tuple[KVCost, int, bool, str | None]], tie: int
) -> None:
    engines = {
        str(i): engine(str(i), used, reservations=held, accepting=accepting, pinned_by=by)
        for i, (used, held, accepting, by) in enumerate(drawn)
    }
    chosen = placed(wanted, *engines.values(), tie=tie)
    open_ones = [e for e in engines.values() if fits(wanted, e) and e.pinned_by != "other"]
    assert (chosen is None) == (not open_ones)
    if chosen is not None:
        after = {
            e.limits.engine_id: max(
                (e.reserved.blocks + wanted.blocks) * e.limits.seqs,
                (e.reserved.seqs + wanted.seqs) * e.limits.blocks,
            )
            for e in open_ones
        }
        assert after[chosen] == min(after.values())


@given(costs, engines_of_a_pool)
def test_pin_finds_an_engine_exactly_if_one_could_ever_serve(
    wanted: KVCost, drawn: list[tuple[KVCost, int, bool, str | None]]
) -> None:
    engines = [
        engine(str(i), used, reservations=held, accepting=accepting, pinned_by=by)
        for i, (used, held, accepting, by) in enumerate(drawn)
    ]
    emptied = [dataclasses.replace(e, reserved=ZERO_COST, reservations=0) for e in engines]
    possible = {e.limits.engine_id for e in emptied if e.pinned_by is None and fits(wanted, e)}
    chosen = pinned_for(wanted, *engines)
    assert chosen in possible if possible else chosen is None


@given(costs, engines_of_a_pool)
def test_pin_takes_what_fits_already(
    wanted: KVCost, drawn: list[tuple[KVCost, int, bool, str | None]]
) -> None:
    engines = [engine(str(i), used, reservations=held) for i, (used, held, _, _) in enumerate(drawn)]
    now = {e.limits.engine_id for e in engines if fits(wanted, e)}
    if now:
        assert pinned_for(wanted, *engines) in now
