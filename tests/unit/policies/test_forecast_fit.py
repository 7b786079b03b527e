"""The inequality."""

from __future__ import annotations

import math

import pytest

from kvgate_policies.forecast_fit import RISK_DEFAULT, RISK_SHARES, fits, load, z_of
from kvgate_policies.occupancy import GRID, NOTHING, SCALE, Occupancy, guaranteed

Z = z_of(RISK_DEFAULT)


def spread(mean: int, deviation: int) -> Occupancy:
    return Occupancy((mean * SCALE,) * len(GRID), (deviation**2 * SCALE,) * len(GRID))


def test_guaranteed_requests_fill_the_engine_to_the_last_block():
    held = guaranteed(60) + guaranteed(30)
    assert fits(held, guaranteed(10), capacity_blocks=100, z=Z)
    assert not fits(held, guaranteed(11), capacity_blocks=100, z=Z)


def test_chance_takes_room_by_the_square_root():
    nearest = Z[0]
    one, hundred = load(spread(0, 10), 1000, Z), NOTHING
    for _ in range(100):
        hundred += spread(0, 10)
    assert one == pytest.approx(nearest * 10 / 1000)
    assert load(hundred, 1000, Z) == pytest.approx(10 * one)


def test_guaranteed_stands_beside_forecast():
    held = guaranteed(50) + spread(20, 5)
    room = 100 - 70 - math.ceil(Z[0] * 5)
    assert fits(held, guaranteed(room), capacity_blocks=100, z=Z)
    assert not fits(held, guaranteed(room + 1), capacity_blocks=100, z=Z)


def test_an_empty_engine_takes_what_it_covers():
    wide = spread(90, 80)
    assert not fits(NOTHING, wide, capacity_blocks=100, z=Z)
    assert fits(NOTHING, wide, capacity_blocks=100, z=Z, trust=0.5, empty=True)
    assert not fits(NOTHING, guaranteed(101), capacity_blocks=100, z=Z, empty=True)


def test_trust_takes_room():
    assert fits(NOTHING, guaranteed(80), capacity_blocks=100, z=Z, trust=0.8)
    assert not fits(NOTHING, guaranteed(81), capacity_blocks=100, z=Z, trust=0.8)
    assert load(guaranteed(1), 0, Z) == math.inf


def test_the_near_future_gets_the_smaller_risk():
    assert list(Z) == sorted(Z, reverse=True)
    assert Z[0] == pytest.approx(3.09, abs=0.01)
    assert Z[-1] == pytest.approx(1.28, abs=0.01)
    assert len(Z) == len(RISK_SHARES) == len(GRID)
    assert z_of(0.5)[-1] == 0.0
    for risk in (0.0, 0.6, -1.0):
        with pytest.raises(ValueError, match="risk"):
            z_of(risk)
