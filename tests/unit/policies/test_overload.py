from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate_policies.overload import GrantRate, retry_after_s


def test_retry_after_is_the_queue_over_the_rate() -> None:
    assert retry_after_s(40, 4.0, 0.5) == pytest.approx(10.0)
    assert retry_after_s(40, 4.0, 0.0) == pytest.approx(7.5)
    assert retry_after_s(40, 4.0, 0.999_999) == pytest.approx(12.5, abs=0.001)


def test_retry_after_without_grants_is_long_and_still_spread() -> None:
    assert retry_after_s(1, 0.0, 0.0) == pytest.approx(36.0)
    assert retry_after_s(1, 0.0, 0.5) == pytest.approx(48.0)
    assert 59.0 < retry_after_s(10**9, 0.001, 0.999_999) <= 60.0


def test_retry_after_is_at_least_a_second() -> None:
    assert retry_after_s(0, 5.0, 0.3) == pytest.approx(1.0)
    assert retry_after_s(1, 1000.0, 0.0) == pytest.approx(1.0)


@pytest.mark.parametrize("jitter", [-0.1, 1.0, 7.0])
def test_jitter_out_of_range_is_refused(jitter: float) -> None:
    with pytest.raises(ValueError, match="jitter"):
        retry_after_s(1, 1.0, jitter)


@given(
    ahead=st.integers(0, 10**9),
    rate=st.floats(0, 1e9),
    jitter=st.floats(0, 1, exclude_max=True),
)
def test_retry_after_stays_where_clients_honour_it(ahead: int, rate: float, jitter: float) -> None:
    wait_s = retry_after_s(ahead, rate, jitter)
    assert 1.0 <= wait_s <= 60.0
    assert retry_after_s(ahead + 1, rate, jitter) >= wait_s


def granted(rate: GrantRate, start_s: float, per_s: float, count: int) -> GrantRate:
    for i in range(count):
        rate = rate.observe(start_s + i / per_s)
    return rate


def test_no_grant_is_no_rate() -> None:
    assert GrantRate().per_s(1e6) == 0.0


@pytest.mark.parametrize("per_s", [0.5, 5.0, 300.0])
def test_steady_rate_is_found(per_s: float) -> None:
    seconds = 60
    rate = granted(GrantRate(), 1000.0, per_s, int(per_s * seconds))
    assert rate.per_s(1000.0 + seconds) == pytest.approx(per_s, rel=0.15)


def test_rate_is_right_from_the_start_too() -> None:
    rate = granted(GrantRate(), 0.0, 10.0, 20)
    assert rate.per_s(2.0) == pytest.approx(10.0, rel=0.15)


def test_burst_is_not_a_rate_per_millisecond() -> None:
    rate = granted(GrantRate(), 0.0, 1e6, 30)
    assert rate.per_s(0.001) == pytest.approx(30.0, rel=0.1)


def test_rate_follows_a_change_within_seconds() -> None:
    fast = granted(GrantRate(), 0.0, 50.0, 3000)
    slow = granted(fast, 60.0, 1.0, 40)
    assert slow.per_s(100.0) < 3.0
    assert fast.per_s(100.0) < slow.per_s(100.0)


def test_observing_gives_a_new_value() -> None:
    first = GrantRate().observe(5.0)
    second = first.observe(6.0)
    assert first == GrantRate().observe(5.0)
    assert second != first


def test_clock_that_stumbles_fades_nothing_twice() -> None:
    steady = GrantRate().observe(0.0).observe(100.0).observe(100.0)
    stumbled = GrantRate().observe(0.0).observe(100.0).observe(1.0)
    assert stumbled.per_s(100.0) == steady.per_s(100.0)


@given(st.lists(st.floats(0, 1e6), max_size=60), st.floats(0, 1e6))
def test_rate_is_bounded_by_the_grants_seen_even_if_time_stumbles(times: list[float], now_s: float) -> None:
    rate = GrantRate()
    for at_s in times:
        rate = rate.observe(at_s)
    assert 0.0 <= rate.per_s(now_s) <= 1.06 * len(times)
