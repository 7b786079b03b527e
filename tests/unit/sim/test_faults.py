from __future__ import annotations

import pytest

from kvgate.sim.faults import FAULTS_QUEUED_MAX, Fault, Faults, Strike, parse_strike


@pytest.mark.parametrize(
    ("text", "strike"),
    [
        ("busy", Strike(Fault.BUSY)),
        (" reset-after=3 ", Strike(Fault.RESET_AFTER, 3)),
        ("500", Strike(Fault.ERROR_500)),
        ("refuse=0.5", Strike(Fault.REFUSE, 0.5)),
    ],
)
def test_a_fault_is_a_name_and_perhaps_a_number(text, strike):
    assert parse_strike(text) == strike


@pytest.mark.parametrize("text", ["", "bussy", "reset-after=", "reset-after=x", "reset-after=-1", "hang=nan"])
def test_what_is_no_fault_is_refused(text):
    with pytest.raises(ValueError, match=r"fault|N is a number"):
        parse_strike(text)


def test_tokens_before_it_strikes():
    assert parse_strike("reset-after").after_tokens == 1
    assert parse_strike("reset-after=0").after_tokens == 0
    assert parse_strike("busy=4").after_tokens is None


def test_faults_strike_the_next_requests_in_order_and_a_header_comes_first():
    faults = Faults()
    faults.add(parse_strike("busy"), 2)
    faults.add(parse_strike("hang"))
    assert faults.take({"x-sim-fault": "empty"}) == Strike(Fault.EMPTY)
    taken = [faults.take({}) for _ in range(4)]
    assert taken == [Strike(Fault.BUSY), Strike(Fault.BUSY), Strike(Fault.HANG), None]


def test_faults_of_the_server_last_until_cleared():
    faults = Faults()
    faults.add(parse_strike("metrics-slow=2"))
    assert faults.take({}) is None
    assert faults.server[Fault.METRICS_SLOW].amount == 2
    faults.clear()
    assert not faults.server


@pytest.mark.parametrize("count", [0, -1, FAULTS_QUEUED_MAX + 1])
def test_the_number_of_waiting_faults_is_bounded(count):
    faults = Faults()
    with pytest.raises(ValueError, match="can wait"):
        faults.add(parse_strike("busy"), count)
    assert faults.waiting == 0
