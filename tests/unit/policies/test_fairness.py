"""Start tags, classes and shares; the bound of start-time fair queueing on random workloads."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate_policies.fairness import (
    AGEING,
    LEVELS,
    PoolSize,
    charge,
    guaranteed_blocks,
    levels_in_turn,
    limit_blocks,
    overtaken_after,
    service_gap_max,
    start_tag,
)
from kvgate_policies.types import CLASSES, PriorityClass, TenantRules

POOL = PoolSize(1000, 16)
WEIGHTS = st.lists(st.sampled_from([0.1, 0.5, 1.0, 1.0, 3.0, 4.0]), min_size=2, max_size=4)
ARRIVALS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 500)), min_size=1, max_size=120)


class OneClass:
    """A class whose every request fits: one grant at a time to the flow with the lowest tag."""

    def __init__(self, weights: list[float]) -> None:
        self.weights = weights
        self.tags = [0.0] * len(weights)
        self.virtual = 0.0
        self.queues: list[list[int]] = [[] for _ in weights]

    def arrive(self, flow: int, work: int) -> None:
        if not self.queues[flow]:
            self.tags[flow] = start_tag(self.tags[flow], self.virtual)
        self.queues[flow].append(work)

    def grant(self) -> tuple[int, int] | None:
        waiting = [flow for flow, queue in enumerate(self.queues) if queue]
        if not waiting:
            return None
        flow = min(waiting, key=lambda each: (self.tags[each], each))
        work = self.queues[flow].pop(0)
        self.virtual = max(self.virtual, self.tags[flow])
        self.tags[flow] += charge(work, self.weights[flow])
        return flow, work


@given(WEIGHTS, ARRIVALS, st.integers(0, 20))
def test_the_service_of_two_that_wait_never_differs_by_more_than_the_bound(weights, arrivals, backlog):
    """At every grant, over every interval in which both of a pair wait, with flows that come and go."""
    one = OneClass(weights)
    largest = [
        max((work for to, work in arrivals if to % len(weights) == flow), default=0) for flow in range(4)
    ]
    since: dict[tuple[int, int], list[tuple[float, float]]] = {}
    served = [0.0] * len(weights)
    for number, (to, work) in enumerate(arrivals):
        one.arrive(to % len(weights), work)
        while number >= backlog and sum(map(len, one.queues)) > backlog:
            watch(one, since, served)
            granted = one.grant()
            assert granted is not None
            served[granted[0]] += charge(granted[1], weights[granted[0]])
            check(one, since, served, largest)


def watch(one: OneClass, since, served) -> None:
    for pair in itertools.combinations(range(len(one.weights)), 2):
        if all(one.queues[flow] for flow in pair):
            since.setdefault(pair, []).append((served[pair[0]], served[pair[1]]))
        else:
            since.pop(pair, None)


def check(one: OneClass, since, served, largest) -> None:
    for (i, j), marks in since.items():
        if one.queues[i] and one.queues[j]:
            bound = service_gap_max(largest[i], one.weights[i], largest[j], one.weights[j])
            for mark_i, mark_j in marks:
                assert abs((served[i] - mark_i) - (served[j] - mark_j)) <= bound * (1 + 1e-9)


def test_a_flow_that_was_idle_has_earned_nothing():
    one = OneClass([1.0, 1.0])
    for _ in range(10):
        one.arrive(0, 100)
        one.grant()
    one.arrive(1, 100)
    assert one.tags[1] == one.virtual == 900


def test_classes_are_due_in_their_order_and_aged_ones_before_from_the_lowest():
    assert [CLASSES[level] for level in levels_in_turn((0, 0, 0))] == list(PriorityClass)
    assert levels_in_turn((0, AGEING - 1, AGEING)) == (2, 0, 1)
    assert levels_in_turn((0, AGEING, AGEING)) == (2, 1, 0)
    assert [LEVELS[priority] for priority in CLASSES] == [0, 1, 2]


def test_a_grant_overtakes_the_lower_classes_that_wait():
    assert overtaken_after((0, 0, 3), 0, (True, False, True), by_guarantee=False) == (0, 0, 4)
    assert overtaken_after((0, 5, 3), 1, (True, True, True), by_guarantee=False) == (0, 0, 4)
    assert overtaken_after((0, 5, AGEING), 0, (True, True, True), by_guarantee=False) == (0, 6, AGEING)
    assert overtaken_after((0, 5, 3), 1, (True, True, True), by_guarantee=True) == (0, 0, 3)


@given(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=3, unique=True))
def test_of_seventeen_grants_in_its_own_and_higher_classes_each_that_waits_has_one(levels):
    overtaken: tuple[int, ...] = (0, 0, 0)
    waiting = tuple(level in levels for level in range(3))
    granted = []
    for _ in range(200):
        level = next(level for level in levels_in_turn(overtaken) if level in levels)
        overtaken = overtaken_after(overtaken, level, waiting, by_guarantee=False)
        granted.append(level)
    for level in levels:
        upto = [each for each in granted if each <= level]
        gaps = [place for place, each in enumerate(upto) if each == level]
        assert gaps[0] <= AGEING
        assert all(after - before <= AGEING + 1 for before, after in itertools.pairwise(gaps))


def test_shares_are_of_the_pool_and_rounded_down():
    assert guaranteed_blocks(TenantRules(guarantee=0.3), POOL) == 300
    assert guaranteed_blocks(TenantRules(guarantee=0.3), PoolSize(5, 16)) == 1
    assert guaranteed_blocks(TenantRules(guarantee=0.3), PoolSize()) == 0
    assert limit_blocks(TenantRules(limit=0.25), POOL, 0) == 250


@pytest.mark.parametrize(
    ("rules", "partitioned", "blocks"),
    [
        (TenantRules(), 0, None),
        (TenantRules(), 300, 700),
        (TenantRules(limit_tokens=1615), 0, 100),
        (TenantRules(limit=0.05, limit_tokens=1615), 0, 50),
        (TenantRules(guarantee=0.3, borrow=False), 0, 300),
        (TenantRules(guarantee=0.3, borrow=False, limit=0.2), 0, 200),
        (TenantRules(guarantee=0.3), 0, None),
        (TenantRules(limit=0.0), 0, 0),
    ],
    ids=str,
)
def test_the_lowest_of_all_bounds_is_the_limit(rules, partitioned, blocks):
    assert limit_blocks(rules, POOL, partitioned) == blocks


def test_without_an_engine_there_is_no_limit():
    assert limit_blocks(TenantRules(limit=0.1, limit_tokens=1, borrow=False), PoolSize(), 0) is None
