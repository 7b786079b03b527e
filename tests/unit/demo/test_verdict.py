from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from kvgate.demo.phase import LedgerWatch
from kvgate.demo.plan import plan_for
from kvgate.demo.verdict import judge
from kvgate.demo.view import closing
from kvgate.demo.words import better_rows, compared, meaning, same_rows, seconds
from kvgate.load import EngineReport, Report

PLAN = plan_for(60)


def report(*, preemptions=0, frozen=0, completed=96, running_max=12, in_flight_max=12, **fields) -> Report:
    engine = EngineReport(preemptions // 2, 100, 0.9, running_max, in_flight_max)
    known: dict[str, Any] = {
        "offered": 96, "ends": {"completed": completed}, "retries": 0, "makespan_s": 26.0, "tokens": 12384,
        "tokens_per_s": 476.0, "ttft_p50_s": 7.0, "ttft_p99_s": 20.0, "itl_p50_s": 0.05, "itl_p99_s": 0.06,
        "longest_gap_p50_s": 0.06, "longest_gap_max_s": 0.07, "freeze_gap_s": 1.0, "client_stalled_s": 0.0, "recomputed_tokens": 0,
    }  # fmt: skip
    return Report(
        preemptions=preemptions,
        frozen=frozen,
        completed=completed,
        engines={"http://a": engine, "http://b": engine},
        **(known | fields),
    )


DIRECT = report(
    preemptions=32,
    frozen=24,
    running_max=18,
    in_flight_max=48,
    longest_gap_max_s=6.5,
    recomputed_tokens=6920,
)
GOOD = report()
LEDGER = LedgerWatch("http://admin", {"http://a": 0, "http://b": 0}, 0, {"http://a": 12, "http://b": 12})


def test_as_claimed():
    assert judge(PLAN, DIRECT, GOOD, LEDGER).ok
    assert judge(PLAN, DIRECT, report(running_max=PLAN.most_per_engine), LEDGER).ok


@pytest.mark.parametrize(
    ("direct", "kvgate", "broken"),
    [
        (replace(DIRECT, preemptions=0), GOOD, 0),
        (replace(DIRECT, frozen=0), GOOD, 0),
        (DIRECT, report(preemptions=1), 1),
        (DIRECT, report(frozen=1), 1),
        (DIRECT, report(completed=95), 2),
        (DIRECT, report(running_max=PLAN.most_per_engine + 1), 3),
        (DIRECT, report(in_flight_max=PLAN.most_per_engine + 1), 3),
        (DIRECT, replace(GOOD, engines={}), 3),
    ],
)
def test_each_claim_can_fail_alone(direct, kvgate, broken):
    result = judge(PLAN, direct, kvgate, LEDGER)
    assert [not claim.holds for claim in result.claims] == [n == broken for n in range(5)]
    assert not result.ok
    assert result.claims[broken].text in " ".join(meaning(result)) or broken == 0


@pytest.mark.parametrize(
    "ledger",
    [
        LedgerWatch("http://admin", {"http://a": 0, "http://b": 10}),
        LedgerWatch("http://admin", {"http://a": 0}, queued=1),
        LedgerWatch("http://admin"),
    ],
)
def test_what_is_not_given_back_or_never_seen_is_no_success(ledger):
    assert not judge(PLAN, DIRECT, GOOD, ledger).claims[4].holds


def test_a_failed_run_is_not_praised():
    text = " ".join(meaning(judge(PLAN, DIRECT, report(frozen=3), LEDGER)))
    assert "Not as claimed" in text
    assert "3 frozen" in text
    assert "None of" not in text


def test_the_text_says_what_does_not_improve():
    text = " ".join(meaning(judge(PLAN, DIRECT, report(makespan_s=29.9, ttft_p50_s=7.1), LEDGER)))
    assert "Total time: 15% longer through kvgate" in text
    assert "first token: about the same" in text
    assert "simulated" in text


def test_hidden_freezes_are_only_called_hidden_when_they_are():
    hidden = meaning(judge(PLAN, DIRECT, GOOD, LEDGER))[0]
    shown = meaning(judge(PLAN, replace(DIRECT, itl_p99_s=3.0), GOOD, LEDGER))[0]
    assert "hides it" in hidden
    assert "hides it" not in shown


def test_the_table_has_both_sides():
    result = judge(PLAN, DIRECT, GOOD, LEDGER)
    better = {row.name: (row.direct, row.kvgate) for row in better_rows(result)}
    same = {row.name: (row.direct, row.kvgate) for row in same_rows(result)}
    assert better["preemptions"] == ("32", "0")
    assert better["streams that froze"] == ("24 of 96", "0 of 96")
    assert better["longest gap, worst"] == ("6.5 s", "70 ms")
    assert better["tokens computed twice"] == ("6,920", "0")
    assert better["most running at once"] == ("18, 18", "12, 12")
    assert same["total time"] == ("26.0 s", "26.0 s")
    assert same["KV cache in use, mean"] == ("90%", "90%")


def test_stalls_of_the_machine_are_told():
    stalled = " ".join(meaning(judge(PLAN, DIRECT, report(client_stalled_s=3.9), LEDGER)))
    assert "too busy to run the demo itself for 3.9 s" in stalled
    assert "too busy" not in " ".join(meaning(judge(PLAN, DIRECT, GOOD, LEDGER)))


def test_unknown_is_a_dash_not_a_zero():
    unknown = replace(GOOD, recomputed_tokens=None, ttft_p50_s=None, engines={})
    result = judge(PLAN, DIRECT, unknown, LEDGER)
    rows = {row.name: row.kvgate for row in [*better_rows(result), *same_rows(result)]}
    assert rows["tokens computed twice"] == rows["to first token, p50"] == "–"
    assert rows["most running at once"] == rows["KV cache in use, mean"] == "–"


@pytest.mark.parametrize(
    ("direct_s", "kvgate_s", "words"),
    [
        (10.0, 10.5, "about the same"),
        (10.0, 15.0, "50% longer through kvgate"),
        (10.0, 5.0, "50% shorter through kvgate"),
        (None, 5.0, "unknown"),
        (5.0, None, "unknown"),
    ],
)
def test_compared(direct_s, kvgate_s, words):
    assert compared(direct_s, kvgate_s) == words


@pytest.mark.parametrize(("value_s", "words"), [(0.0512, "51 ms"), (6.449, "6.4 s"), (None, "–")])
def test_seconds(value_s, words):
    assert seconds(value_s) == words


@pytest.mark.parametrize("width", [40, 100])
def test_the_closing_fits_and_ends_with_the_verdict(width):
    def printed(result) -> str:
        written = io.StringIO()
        Console(file=written, width=width, color_system=None, legacy_windows=False).print(closing(result))
        return written.getvalue()

    good = printed(judge(PLAN, DIRECT, GOOD, LEDGER))
    assert max(cell_len(each) for each in good.splitlines()) <= width
    assert good.rstrip().endswith("\nAs claimed.")
    assert printed(judge(PLAN, GOOD, DIRECT, LEDGER)).rstrip().endswith("\nNOT as claimed.")
