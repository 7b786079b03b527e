"""The scripts decide as the ledger in memory does, and stay whole, whatever happens in whatever order."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from integration.ledger.chaos import Chaos
from integration.ledger.equivalence import Equivalence

if TYPE_CHECKING:
    from support.redis_server import RedisServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
"""A failure is shrunk, which takes minutes on a real server."""

STEPS = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


class ManyEngines(Equivalence):
    """One process; engines come, change and go at any time."""


class OneEngine(Equivalence):
    engine_ids = ("a",)


class Strict(Equivalence):
    """Every head that does not fit pins at once; a call looks at one entry and grants one."""

    bypass_max = 0
    scan_depth = 1
    grants_max = 1
    engine_ids = ("a", "b")


class SharedPool(Equivalence):
    """Three processes; engines come and go while nobody waits, and change their size at any time."""

    pids = ("p", "q", "r")


MACHINES = [ManyEngines, OneEngine, Strict, SharedPool, Chaos]


def run(machine: type[RuleBasedStateMachine], server: RedisServer, steps: settings) -> None:
    run_state_machine_as_test(type(machine.__name__, (machine,), {"server": server}), settings=steps)


@pytest.mark.parametrize("machine", MACHINES)
def test_any_operations_in_any_order(machine, redis_process: RedisServer) -> None:
    run(machine, redis_process, STEPS)


@pytest.mark.soak
@pytest.mark.timeout(1700)
@pytest.mark.skipif(os.environ.get("KVGATE_SOAK") != "1", reason="the short form runs above")
@pytest.mark.parametrize("machine", MACHINES)
def test_ever_new_operations(machine, redis_process: RedisServer) -> None:
    long = settings(STEPS, max_examples=300, stateful_step_count=80, derandomize=False, database=None)
    run(machine, redis_process, long)
