"""Whom to send back."""

from __future__ import annotations

from kvgate_policies.forecast_revocation import NEAR_POINTS, REVOCATIONS_MAX, Revocable, to_revoke
from kvgate_policies.occupancy import GRID, NOTHING, SCALE, Occupancy, guaranteed


def running(sizes: dict[str, int], revoked: int = 0) -> list[Revocable]:
    return [
        Revocable(name, guaranteed(size), generated, revoked)
        for generated, (name, size) in enumerate(sizes.items())
    ]


def total(candidates: list[Revocable]) -> Occupancy:
    held = NOTHING
    for one in candidates:
        held += one.vector
    return held


def test_nobody_while_it_fits():
    candidates = running({"a": 50, "b": 50})
    assert to_revoke(total(candidates), candidates, capacity_blocks=100) == ()


def test_the_one_with_the_least_work_first_and_no_more_than_needed():
    candidates = running({"a": 30, "b": 30, "c": 70})
    assert to_revoke(total(candidates), candidates, capacity_blocks=100) == ("a",)
    assert to_revoke(total(candidates), candidates, capacity_blocks=75) == ("a", "b")


def test_no_one_is_sent_back_for_ever():
    candidates = running({"a": 80, "b": 80}, revoked=REVOCATIONS_MAX)
    assert to_revoke(total(candidates), candidates, capacity_blocks=100) == ()


def test_a_far_future_that_does_not_fit_is_left_to_admission():
    beyond = len(GRID) - NEAR_POINTS
    far = Occupancy((10 * SCALE,) * NEAR_POINTS + (200 * SCALE,) * beyond, (0,) * len(GRID))
    assert to_revoke(far, [Revocable("a", far, 0)], capacity_blocks=100) == ()


def test_room_for_chance_is_left_to_admission():
    """It is expected to fit, though with less to spare than anybody would start with."""
    wide = Occupancy((49 * SCALE,) * len(GRID), (400 * SCALE,) * len(GRID))
    candidates = [Revocable("a", wide, 1), Revocable("b", wide, 2)]
    assert to_revoke(wide + wide, candidates, capacity_blocks=100) == ()
    assert to_revoke(wide + wide, candidates, capacity_blocks=97) == ("a",)
