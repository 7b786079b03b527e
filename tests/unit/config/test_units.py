from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.config import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30.0), ("15m", 900.0), ("1h", 3600.0), ("500ms", 0.5), ("1.5s", 1.5), (" 2s ", 2.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert units.duration_s(text) == seconds


@pytest.mark.parametrize(
    "value", ["", "30", 30, 30.0, "0s", "-1s", "30 s", "30sec", "1h30m", "s", None, True, "٣s", [], "1e3s"]
)
def test_a_duration_without_a_unit_or_sense_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="30s, 15m"):
        units.duration_s(value)


@pytest.mark.parametrize(
    ("value", "number"), [(0, 0), (7, 7), ("200", 200), ("200k", 200_000), ("1.5M", 1_500_000), ("0.3k", 300)]
)
def test_counts(value: object, number: int) -> None:
    assert units.count(value) == number


@pytest.mark.parametrize(
    "value", [-1, 1.5, "1.5", "-3", "many", "", None, True, "2K", "1.0005k", "0x10", "1_000"]
)
def test_what_is_no_count_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="whole number"):
        units.count(value)


@pytest.mark.parametrize("value", [10**12 + 1, 10**400, "1000001M", "1" * 400, "1" * 400 + "k"])
def test_a_count_that_no_ledger_could_count_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="at most 1000000M"):
        units.count(value)
    assert units.count("1000000M") == 10**12


@pytest.mark.parametrize("value", ["300000h", "9" * 400 + "h"])
def test_a_duration_without_an_end_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="at most 30 years"):
        units.duration_s(value)
    assert units.duration_s("87600h") == 315_360_000


@pytest.mark.parametrize(
    ("value", "part"), [("0%", 0.0), ("2%", 0.02), ("99.5%", 0.995), (0.02, 0.02), ("0.02", 0.02), (0, 0.0)]
)
def test_shares(value: object, part: float) -> None:
    assert units.share(value) == pytest.approx(part)


@pytest.mark.parametrize("value", ["100%", 1, -0.1, "-2%", "half", None, True, float("nan"), "inf", []])
def test_what_is_no_share_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="percentage"):
        units.share(value)


@given(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.booleans(), st.lists(st.integers())))
def test_any_value_is_read_or_refused(value: object) -> None:
    for read in (units.duration_s, units.count, units.share):
        try:
            number = read(value)
        except ValueError:
            continue
        assert number >= 0


@given(st.integers(1, 10**9))
def test_counts_read_back(number: int) -> None:
    assert units.count(str(number)) == number
    assert units.count(f"{number}k") == number * 1000
