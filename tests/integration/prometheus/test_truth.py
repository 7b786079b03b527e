"""The numbers in Prometheus are those that the clients and the engines counted themselves.

Counters are compared exactly, after the overload has settled. Gauges are compared at every scrape with all values that
the truth had from one scrape (and the second that the view of a shared ledger may be old) before to one scrape after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from statistics import mean

import pytest

from integration.prometheus.story import BY_THE_MOMENT, Story
from kvgate_policies.kv_cost import price
from kvgate_policies.types import EngineShape
from support.watched_clients import Habit, Seen
from support.watched_run import BLOCK_SIZE, BLOCKS, SCRAPE_S, WEB, WINDOW

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

VIEW_AGE_S = 1.0
BEFORE_S, AFTER_S = SCRAPE_S + VIEW_AGE_S + 0.2, SCRAPE_S + 0.2
STEP_S = 0.05
PREEMPTED_SHARE_MAX = 0.02
"""Of those that started: half a dozen fill these engines, and now and then all of them go on for longer than forecast."""
GROWN_MAX = 1.1
"""Of an engine, that is reserved: nobody starts beyond its blocks, but a forecast grows with an answer that goes on."""


def by(story: Story, query: str, *names: str) -> dict[tuple[str, ...], float]:
    """A query once all is settled, by some of its labels; zeros left out."""
    rows = story.run.prometheus.ask(query, story.settled_s)
    found = {tuple(dict(labels)[name] for name in names): value for labels, value in rows.items()}
    return {key: value for key, value in found.items() if value}


def counted(
    story: Story, accept: Callable[[Seen], bool], key: Callable[[Seen], tuple[str, ...]]
) -> dict[tuple[str, ...], int]:
    return dict(Counter(key(one) for one in story.overload if accept(one)))


def of_tenant(one: Seen) -> tuple[str, ...]:
    return one.habit.pool, one.habit.tenant


def let_in(one: Seen) -> bool:
    return one.reason is None


def test_nothing_broke_in_the_overload(story: Story):
    assert {one.reason for one in story.overload} == {None, "queue_full", "queue_timeout", "tenant_rate"}
    assert all(one.whole for one in story.overload if let_in(one))


def test_arrivals_grants_and_answers(story: Story):
    every = counted(story, lambda _: True, of_tenant)
    granted = counted(story, let_in, of_tenant)
    assert by(story, "sum by (pool, tenant) (kvgate_requests_arrived_total)", "pool", "tenant") == every
    assert by(story, "sum by (pool, tenant) (kvgate_requests_total)", "pool", "tenant") == every
    assert (
        by(story, 'sum by (pool, tenant) (kvgate_requests_total{outcome="served"})', "pool", "tenant")
        == granted
    )
    waited = {key: count for key, count in granted.items() if key[1] != "trial"}
    assert (
        by(story, 'sum by (pool, tenant) (kvgate_grants_total{tenant!="trial"})', "pool", "tenant") == waited
    )


def test_rejections_by_reason(story: Story):
    refused = counted(story, lambda one: not let_in(one), lambda one: (*of_tenant(one), str(one.reason)))
    assert len(refused) >= 2
    query = "sum by (pool, tenant, reason) (kvgate_rejections_total)"
    assert by(story, query, "pool", "tenant", "reason") == refused


def test_tokens(story: Story):
    for metric, count in (
        ("prompt_tokens", lambda one: one.prompt_tokens),
        ("completion_tokens", lambda one: one.completion_tokens),
    ):
        truth: Counter[tuple[str, ...]] = Counter()
        for one in story.overload:
            truth[of_tenant(one)] += count(one)
        assert by(story, f"sum by (pool, tenant) (kvgate_{metric}_total)", "pool", "tenant") == dict(+truth)


def test_the_engines_computed_what_kvgate_counted(story: Story):
    engines = by(story, "sum by (model_name) (vllm:generation_tokens_total)", "model_name")
    assert by(story, "sum by (pool) (kvgate_completion_tokens_total)", "pool") == engines


@pytest.mark.soak
@BY_THE_MOMENT
def test_service_by_tenant(story: Story):
    truth: Counter[tuple[str, ...]] = Counter()
    for one in story.overload:
        if one.habit.tenant != "trial":
            truth[of_tenant(one)] += one.prompt_tokens + 2 * one.completion_tokens
    query = 'max by (pool, tenant) (kvgate_tenant_service_tokens{tenant!="trial"})'
    assert by(story, query, "pool", "tenant") == dict(+truth)


def test_waits(story: Story):
    granted = counted(story, let_in, of_tenant)
    count = by(story, "sum by (pool, tenant) (kvgate_queue_wait_seconds_count)", "pool", "tenant")
    assert {key: n for key, n in count.items() if key[1] != "trial"} == {
        key: n for key, n in granted.items() if key[1] != "trial"
    }
    spent: Counter[tuple[str, ...]] = Counter()
    for one in story.overload:
        if let_in(one) and one.first_s is not None:
            spent[of_tenant(one)] += one.first_s - one.sent_s  # type: ignore[assignment]
    waits = by(story, "sum by (pool, tenant) (kvgate_queue_wait_seconds_sum)", "pool", "tenant")
    for key in (("chat", "web"), ("chat", "jobs"), ("small", "web")):
        assert waits[key] <= spent[key], "a client waits for the grant, and then for the first byte"
        assert waits[key] >= 0.6 * spent[key], "most of the wait was for the grant"


def deviations(
    story: Story, query: str, truth: Callable[[float], float], begin_s: float, end_s: float
) -> list[tuple[float, float, set[float]]]:
    """Scrapes at which the metric had no value that was true around then."""
    [row] = story.run.prometheus.ask_range(query, begin_s, end_s, SCRAPE_S).values()
    wrong = []
    for at_s, value in row:
        around = {truth(moment_s) for moment_s in moments(at_s - BEFORE_S, at_s + AFTER_S)}
        if not min(around) <= value <= max(around):
            wrong.append((at_s - begin_s, value, around))
    assert len(row) > 15
    assert len({value for _, value in row}) > 3, "it moved"
    return wrong


def moments(begin_s: float, end_s: float) -> Iterable[float]:
    return (begin_s + step * STEP_S for step in range(round((end_s - begin_s) / STEP_S) + 1))


@pytest.mark.soak
@BY_THE_MOMENT
@pytest.mark.parametrize(("pool", "tenant"), [("chat", "web"), ("chat", "jobs"), ("small", "web")])
def test_queue_depth_at_every_scrape(story: Story, pool: str, tenant: str):
    mine = [one for one in story.overload if of_tenant(one) == (pool, tenant)]
    query = f'max (kvgate_tenant_queue_depth{{pool="{pool}", tenant="{tenant}"}})'
    wrong = deviations(
        story, query, lambda at_s: sum(one.queued_at(at_s) for one in mine), story.begin_s, story.settled_s
    )
    assert wrong == []


@pytest.mark.soak
@BY_THE_MOMENT
def test_the_depth_of_a_pool_is_that_of_its_tenants(story: Story):
    mine = [one for one in story.overload if one.habit.pool == "chat"]
    wrong = deviations(
        story,
        'max (kvgate_queue_depth{pool="chat"})',
        lambda at_s: sum(one.queued_at(at_s) for one in mine),
        story.begin_s,
        story.settled_s,
    )
    assert wrong == []


def cost(habit: Habit) -> int:
    shape = EngineShape(BLOCK_SIZE, WINDOW)
    assert habit.max_tokens is not None
    return price(shape, [habit.prompt_tokens], habit.max_tokens, 1).blocks


@pytest.mark.soak
@BY_THE_MOMENT
def test_blocks_held_by_a_tenant_at_every_scrape(story: Story):
    mine = [one for one in story.overload if one.habit is WEB]
    wrong = deviations(
        story,
        'max (kvgate_tenant_reserved_blocks{pool="chat", tenant="web"})',
        lambda at_s: cost(WEB) * sum(one.running_at(at_s) for one in mine),
        story.begin_s,
        story.settled_s,
    )
    assert wrong == []


def test_what_is_reserved_covers_what_is_used_and_hardly_exceeds_the_engine(story: Story):
    reserved = story.run.prometheus.ask_range(
        "max by (engine) (kvgate_ledger_reserved_blocks)", story.begin_s, story.settled_s, SCRAPE_S
    )
    assert len(reserved) == 3
    assert max(value for row in reserved.values() for _, value in row) <= GROWN_MAX * (BLOCKS - 1)
    drift = story.run.prometheus.ask_range(
        'max by (engine) (min_over_time(kvgate_ledger_drift_blocks{pool="chat"}[4s]))',
        story.begin_s + 4,
        story.settled_s,
        SCRAPE_S,
    )
    assert max(value for row in drift.values() for _, value in row) <= 0
    preempted = by(story, "sum by (engine) (vllm:num_preemptions_total)", "engine")
    assert sum(preempted.values()) <= PREEMPTED_SHARE_MAX * sum(let_in(one) for one in story.overload)


def test_blocks_in_use_are_the_engines_own_number(story: Story):
    """The engine is looked at twice, by a probe and by Prometheus, at other moments: alike in the mean, and at rest."""
    ask = story.run.prometheus.ask_range
    mine = ask(
        'max by (engine) (kvgate_engine_kv_blocks_in_use{pool="chat"})', story.begin_s, story.settled_s, 1.0
    )
    assert len(mine) == 2
    for labels, row in mine.items():
        instance = dict(labels)["engine"].removeprefix("http://")
        own = f'vllm:kv_cache_usage_perc{{instance="{instance}"}} * {BLOCKS - 1}'
        [true] = ask(own, story.begin_s, story.settled_s, 1.0).values()
        assert mean(v for _, v in row) == pytest.approx(mean(v for _, v in true), rel=0.15)
        assert row[-1][1] == true[-1][1] == 0
