"""Whom to send back."""

from __future__ import annotations

from kvgate_policies.forecast_fit import z_of
from kvgate_policies.forecast_revocation import NEAR_POINTS, REVOCATIONS_MAX, Revocable, to_revoke
from kvgate_policies.occupancy import GRID, NOTHING, SCALE, Occupancy, guaranteed

Z = z_of(0.01)


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
    assert to_revoke(total(candidates), candidates, capacity_blocks=100, z=Z) == ()


def test_the_one_with_the_least_work_first_and_no_more_than_needed():
    candidates = running({"a": 30, "b": 30, "c": 70})
    assert to_revoke(total(candidates), candidates, capacity_blocks=100, z=Z) == ("a",)
    assert to_revoke(total(candidates), candidates, capacity_blocks=75, z=Z) == ("a", "b")


def test_no_one_is_sent_back_for_ever():
    candidates = running({"a": 80, "b": 80}, revoked=REVOCATIONS_MAX)
    assert to_revoke(total(candidates), candidates, capacity_blocks=100, z=Z) == ()


def test_a_far_future_that_does_not_fit_is_left_to_admission():
    beyond = len(GRID) - NEAR_POINTS
    far = Occupancy((10 * SCALE,) * NEAR_POINTS + (200 * SCALE,) * beyond, (0,) * len(GRID))
    assert to_revoke(far, [Revocable("a", far, 0)], capacity_blocks=100, z=Z) == ()
