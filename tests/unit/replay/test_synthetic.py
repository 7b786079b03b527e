"""Made-up traffic: rates, days, bursts and lengths come out as they were written; mistakes are named."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from kvgate.errors import ConfigError
from kvgate.load.lengths import Fixed
from kvgate.replay.synthetic import Bursts, MaxTokens, Synthetic, TenantLoad
from kvgate.replay.synthetic_words import FILE_BYTES_MAX, NAMED, read_synthetic
from kvgate_policies.types import PriorityClass

PLAIN = TenantLoad(Fixed(100), Fixed(10))


def made(rate: float = 1.0, hours: float = 24.0, **tenants: TenantLoad) -> Synthetic:
    return Synthetic("made", rate, hours, tenants or {"a": PLAIN})


@pytest.mark.parametrize("name", NAMED)
def test_the_named_ones_have_their_rate_over_a_day(name: str):
    found = read_synthetic(f"synthetic:{name}?rate=0.5")
    requests = list(found.offered(1))
    assert len(requests) == pytest.approx(found.expected, rel=0.12), "bursts are few"
    assert requests == sorted(requests, key=lambda one: one.arrived_s)
    assert 0 <= requests[0].arrived_s < requests[-1].arrived_s <= found.span_s
    assert {one.tenant for one in requests} == set(found.tenants)


def test_the_rate_of_a_plain_one_is_its_rate():
    requests = list(made().offered(1))
    assert len(requests) == pytest.approx(86_400, rel=0.02)
    gaps = sorted(b.arrived_s - a.arrived_s for a, b in pairwise(requests))
    assert gaps[len(gaps) // 2] == pytest.approx(0.6931, rel=0.03), "the median of an exponential"


def test_shares_divide_the_requests():
    counts = Counter(
        one.tenant for one in made(a=TenantLoad(Fixed(1), Fixed(1), share=3), b=PLAIN).offered(1)
    )
    assert counts["a"] == pytest.approx(3 * counts["b"], rel=0.05)


def test_the_day_has_its_peak_and_its_night():
    load = TenantLoad(Fixed(1), Fixed(1), daily=0.8, peak_hour=15)
    hours = Counter(int(one.arrived_s // 3600) for one in made(a=load).offered(1))
    assert hours[15] == pytest.approx(1.8 * 3600, rel=0.05)
    assert hours[3] == pytest.approx(0.2 * 3600, rel=0.15)


def test_bursts_multiply_the_rate_and_leave_the_mean():
    load = TenantLoad(Fixed(1), Fixed(1), bursts=Bursts(600, 60, 10))
    tens = Counter(int(one.arrived_s // 10) for one in made(a=load).offered(1))
    quiet_rate = 1 / load.bursts.mean if load.bursts else 0
    full = [count for count in tens.values() if count > 5 * quiet_rate * 10]
    assert len(full) / 8640 == pytest.approx(60 / 660, rel=0.25)
    assert sum(full) / len(full) == pytest.approx(10 * quiet_rate * 10, rel=0.1)
    assert tens.total() == pytest.approx(86_400, rel=0.1)


def test_the_same_seed_is_the_same_and_a_tenant_more_changes_nothing_of_the_others():
    one = list(made(hours=0.5).offered(7))
    assert one == list(made(hours=0.5).offered(7))
    assert one != list(made(hours=0.5).offered(8))
    beside = made(rate=2.0, hours=0.5, a=PLAIN, b=PLAIN)
    assert [r for r in beside.offered(7) if r.tenant == "a"] == one


@pytest.mark.parametrize(
    ("limit", "asked"), [(MaxTokens(), None), (MaxTokens(512), 512), (MaxTokens(factor=1.5), 15)]
)
def test_what_clients_ask_for(limit: MaxTokens, asked: int | None):
    load = TenantLoad(Fixed(5), Fixed(10), max_tokens=limit)
    assert {one.max_tokens for one in made(hours=0.1, a=load).offered(1)} == {asked}


def test_a_file_says_it_all(tmp_path: Path):
    path = tmp_path / "day.yaml"
    path.write_text(
        "hours: 2\nrate: 3\ntenants:\n  chat:\n    share: 2\n    prompt: 100\n    output: uniform:5:9\n"
        "    max_tokens: 4x\n    daily: 50%\n    peak: 12\n    bursts: {every: 20m, last: 30s, times: 4}\n"
        "    class: batch\n    patience: 60s\n    stream: off\n"
    )
    found = read_synthetic(str(path))
    assert (found.hours, found.rate) == (2, 3)
    load = found.tenants["chat"]
    assert (load.share, load.daily, load.peak_hour, load.bursts) == (2, 0.5, 12, Bursts(1200, 30, 4))
    first = next(found.offered(1))
    assert (first.prompt_tokens, first.max_tokens) == (100, 4 * first.output_tokens)
    assert (first.priority, first.patience_s, first.stream) == (PriorityClass.BATCH, 60, False)


def test_a_word_may_say_rate_hours_and_swing():
    found = read_synthetic("synthetic:mixed?rate=7&hours=0.5&daily=10%25")
    assert (found.rate, found.hours, {load.daily for load in found.tenants.values()}) == (7, 0.5, {0.1})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("synthetic:poetry", "no workload 'poetry'; there are chat, code"),
        ("synthetic:chat?speed=2", "'speed' is not allowed; allowed: rate, hours, daily"),
        ("synthetic:chat?rate=-1", "rate: '-1' is not allowed"),
        ("synthetic:chat?rate=nan", "rate: 'nan' is not allowed"),
        (
            "synthetic:chat?hours=1e9",
            "hours: '1e9' is not allowed; allowed: a number above 0 and at most 744",
        ),
        ("synthetic:chat?rate=9999", "requests; allowed: at most 10,000,000. Take fewer hours"),
        ("synthetic:chat?daily=200%25", "daily: '200%' is not allowed"),
    ],
)
def test_words_that_are_wrong(text: str, said: str):
    with pytest.raises(ConfigError) as caught:
        read_synthetic(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has to be a mapping with hours, rate, tenants"),
        ("hours: 1\nrate: [", ": line 2, column 8: expected the node content"),
        ("hours: 1\nhours: 2", ": line 2, column 1: the key 'hours' is there twice"),
        ("hours: 2026-13-45", ": not YAML: month must be in 1..12"),
        ("[" * 5000, ": nested too deeply"),
        ("#" * (FILE_BYTES_MAX + 1), f": larger than {FILE_BYTES_MAX} bytes"),
        ("rate: 1", "tenants has to be a mapping of 1 to 200 by name"),
        ("speed: 1\ntenants: {a: {prompt: 1, output: 1}}", "speed is not allowed; allowed: hours, rate, tenants"),
        ("tenants: {a: {prompt: 1}}", "tenants.a.output: is missing"),
        ("tenants: {a: {prompt: some, output: 1}}", "tenants.a.prompt: 'some' is not allowed; allowed: a number"),
        ("tenants: {a: {prompt: 1, output: 1, max_tokens: many}}", "max_tokens: 'many' is not allowed; allowed: unset"),
        ("tenants: {a: {prompt: 1, output: 1, bursts: {every: 5m}}}", "bursts: last, times is missing"),
        ("tenants: {a: {prompt: 1, output: 1, bursts: {every: 5m, last: 1s, times: 2}}}", "last: 1s is not allowed"),
        ("tenants: {a: {prompt: 1, output: 1, class: vip}}", "class: 'vip' is not allowed"),
        ("tenants: {a: {prompt: 1, output: 1, who: me}}", "tenants.a: who is not allowed"),
    ],
)  # fmt: skip
def test_files_that_are_wrong(tmp_path: Path, text: str, said: str):
    path = tmp_path / "day.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_synthetic(str(path))
    assert said in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_synthetic(str(tmp_path / "none.yaml"))
