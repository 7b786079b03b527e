"""Requests through the ledger and the engines in virtual time: who waits how long, who is refused, and for what."""

from __future__ import annotations

import inspect
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvgate.errors import ConfigError
from kvgate.ledger.memory import MemoryLedger
from kvgate.replay import Hardware
from kvgate.replay.offered import Offered
from kvgate.replay.world import GRANTS_MAX, SCAN_DEPTH
from kvgate_policies.types import Endpoint, PriorityClass
from unit.replay.make import BY_HEADER, HARDWARE, offered, one, policy_file

STEP_S = 0.01


def crowd(count: int, **more: Any) -> list[Offered]:
    return [offered(0.0, **more) for _ in range(count)]


def test_what_fits_starts_and_the_rest_waits_for_it():
    found = one(crowd(10))
    assert found.total.outcomes == {"served": 10}
    assert found.total.wait_p50_s == 0
    assert found.total.wait_p99_s == pytest.approx(1.0, abs=0.1), "those behind wait for one whole answer"
    assert (found.total.preemptions, found.queued_most) == (0, 5)


def test_without_admission_control_they_preempt_each_other():
    found = one(crowd(10), "direct")
    assert found.total.outcomes == {"served": 10}
    assert found.total.wait_p99_s == 0
    assert found.total.preemptions > 0


def test_a_queue_has_its_depth_and_its_wait(tmp_path: Path):
    policy = policy_file(tmp_path, "defaults: {queue: {depth: 5, wait: 500ms}}")
    found = one(crowd(12), policy)
    assert found.total.outcomes == {"served": 5, "evicted_queue_timeout": 5, "rejected_queue_full": 2}
    assert (found.total.rejected, found.total.offered) == (7, 12)


def test_a_deadline_of_its_own_ends_a_wait_sooner():
    found = one([*crowd(5), offered(0.0, deadline_s=0.25)])
    assert found.total.outcomes == {"served": 5, "evicted_deadline": 1}


def test_a_client_that_leaves_while_it_waits_or_while_it_is_answered():
    leaving = [offered(0.0, patience_s=0.3), offered(0.001, seen_enough_s=0.2)]
    found = one([*crowd(5), *leaving, offered(0.5)])
    assert found.total.outcomes == {"served": 6, "client_gone": 2}
    patient = one([offered(0.0, patience_s=0.3)])
    assert patient.total.outcomes == {"served": 1}, "its answer had begun"


def test_what_left_early_gives_its_room_back_after_a_grace():
    alone = replace(HARDWARE, num_gpu_blocks=102)  # room for five, and a block
    requests = [offered(0.0, seen_enough_s=0.2), *crowd(4), offered(0.01)]
    found = one(requests, hardware=alone)
    assert found.total.wait_p99_s == pytest.approx(0.2 + 0.3 - 0.01, abs=0.02)


def test_limits_of_a_policy_are_written_into_what_runs(tmp_path: Path):
    requests = [offered(0.0, max_tokens=None, output_tokens=300)]
    assert one(requests).total.tokens_per_s == 300
    capped = policy_file(tmp_path, "defaults: {max_tokens: {default: 50}}")
    assert one(requests, capped).total.tokens_per_s == 50
    observed = policy_file(tmp_path, "mode: observe\ndefaults: {max_tokens: {default: 50}}", "observe")
    assert one(requests, observed).total.tokens_per_s == 300


def test_a_completion_without_a_limit_is_short():
    requests = [offered(0.0, max_tokens=None, output_tokens=300, endpoint=Endpoint.COMPLETIONS)]
    assert one(requests).total.tokens_per_s == one(requests, "direct").total.tokens_per_s == 16


def test_a_class_that_is_asked_for_counts_when_it_is_lower(tmp_path: Path):
    policy = policy_file(tmp_path, BY_HEADER + "defaults: {class: interactive}\ntenants: {a: {}, b: {}}")
    batch = [offered(0.001, "a", priority=PriorityClass.BATCH) for _ in range(5)]
    urgent = [offered(0.002, "b") for _ in range(5)]
    found = one([*crowd(5, tenant="b"), *batch, *urgent], policy)
    first, second = found.tenants["b"].wait_p99_s, found.tenants["a"].wait_p50_s
    assert first is not None
    assert second is not None
    assert first < second


def test_tenants_of_the_policy_share_and_those_it_does_not_know_are_refused(tmp_path: Path):
    policy = policy_file(tmp_path, BY_HEADER + "tenants: {small: {limit: 20%}, large: {}}")
    requests = [offered(0.0, name) for name in ("small", "small", "large", "large", "nobody")]
    found = one(requests, policy)
    assert found.total.outcomes == {"served": 4, "rejected_unauthorized": 1}
    assert found.tenants["small"].wait_p99_s == pytest.approx(1.0, abs=0.1), "one at a time"
    assert found.tenants["large"].wait_p99_s == 0


def test_a_policy_that_knows_nobody_is_a_mistake(tmp_path: Path):
    policy = policy_file(tmp_path, BY_HEADER + "tenants: {chat: {}}")
    with pytest.raises(
        ConfigError, match=r"belong to anonymous, and the policy knows chat.*--tenant NAME:SHARE"
    ):
        one(crowd(1), policy)


def test_a_budget_that_is_spent_refuses(tmp_path: Path):
    policy = policy_file(tmp_path, "defaults: {rate: {requests_per_minute: 2}}")
    assert one(crowd(3), policy).total.outcomes == {"served": 2, "rejected_tenant_rate": 1}


def test_by_forecast_more_run_at_once_than_by_their_peaks():
    requests = [offered(number * 0.5, max_tokens=None, output_tokens=100) for number in range(40)]
    by_forecast, by_peaks = one(requests), one(requests, "guaranteed")
    assert by_forecast.total.served == by_peaks.total.served == 40
    assert by_forecast.total.wait_p99_s is not None
    assert by_peaks.total.wait_p99_s is not None
    assert by_forecast.total.wait_p99_s < by_peaks.total.wait_p99_s / 4


def test_sequences_that_could_fill_more_than_an_engine_are_no_reason_to_refuse():
    several = offered(0.0, max_tokens=None, output_tokens=50, n=5)
    assert one([several]).total.outcomes == {"served": 1}
    assert one([several], "guaranteed").total.outcomes == {"rejected_never_fits": 1}
    sure = replace(several, max_tokens=1000, ignore_eos=True)
    assert one([sure]).total.outcomes == {"rejected_never_fits": 1}


def test_what_no_engine_could_hold():
    too_long, filling = offered(0.0, prompt_tokens=1600), offered(0.0, prompt_tokens=1599, max_tokens=10)
    assert one([too_long]).total.outcomes == {"rejected_never_fits": 1}
    assert one([too_long], "direct").total.outcomes == {"upstream_refused": 1}
    assert one([filling]).total.outcomes == {"served": 1}


def test_a_count_that_is_too_high_refuses_nobody_and_one_too_low_is_refused_by_the_engine():
    guessed = offered(0.0, prompt_tokens=1400, counted_tokens=1700, exact=False)
    assert one([guessed]).total.outcomes == {"served": 1}
    hidden = offered(0.0, prompt_tokens=1700, counted_tokens=1400, exact=False)
    assert one([hidden]).total.outcomes == {"upstream_refused": 1}


def test_several_sequences_end_together_and_cost_together():
    found = one([offered(0.0, n=5), offered(0.0)])
    assert found.total.outcomes == {"served": 2}
    assert found.total.wait_p99_s == pytest.approx(1.0, abs=0.1)
    assert found.total.tokens_per_s == 600


def test_first_tokens_are_counted_from_arrival():
    found = one([*crowd(5), offered(0.0)])
    wait_s, ttft_s = found.total.wait_p99_s, found.total.ttft_p99_s
    assert wait_s is not None
    assert ttft_s is not None
    assert wait_s < ttft_s < wait_s + 5 * STEP_S


def test_what_is_not_within_the_objective_is_not_good(tmp_path: Path):
    slow = replace(HARDWARE, profile="fast:200")
    found = one(crowd(3), hardware=slow)
    assert (found.total.served, found.total.good, found.total.goodput_tokens_per_s) == (3, 0, 0)
    assert one(crowd(3)).total.good == 3


def test_a_stream_that_never_begins_is_given_up():
    found = one(crowd(3), "direct", replace(HARDWARE, profile="fast:130000"))
    assert found.total.outcomes == {"upstream_timeout": 3}


def test_work_is_spread_over_the_engines():
    assert one(crowd(10), hardware=replace(HARDWARE, engines=2)).total.wait_p99_s == 0


def busy(seed: int) -> list[Offered]:
    rng = random.Random(seed)
    now_s, requests = 0.0, []
    for _ in range(150):
        now_s += rng.expovariate(6)
        requests.append(
            offered(
                now_s,
                rng.choice(["a", "b"]),
                prompt_tokens=rng.randint(1, 500),
                output_tokens=rng.randint(1, 200),
                max_tokens=rng.choice([None, 250]),
                stream=rng.random() < 0.8,
                patience_s=rng.choice([None, None, 2.0]),
                seen_enough_s=rng.choice([None, None, None, 0.3]),
            )
        )
    return requests


@pytest.mark.parametrize("policy", ["guaranteed", "direct"])
def test_the_same_input_gives_the_same_answer_and_so_does_every_single_step(policy: str):
    hardware = Hardware(2, 101, 16, 1600, 64, 512, "8b-80gb:2")
    for seed in range(2):
        requests = busy(seed)
        first, again, exact = (one(requests, policy, hardware, exact=exact) for exact in (False, False, True))
        assert first == again
        assert exact.total.outcomes == first.total.outcomes
        assert exact.total.preemptions == first.total.preemptions
        for name in ("wait_p50_s", "wait_p99_s", "ttft_p99_s"):
            assert getattr(exact.total, name) == pytest.approx(getattr(first.total, name), rel=0.02, abs=1e-6)
        assert (exact.reserved_share or 0) == pytest.approx(first.reserved_share or 0, rel=1e-6)
        assert exact.held_share == pytest.approx(first.held_share, rel=0.05)


def test_requests_have_to_come_in_order():
    with pytest.raises(ValueError, match="comes after"):
        one([offered(1.0), offered(0.5)])


def test_the_grant_loop_has_the_bounds_of_the_ledger_that_serves():
    defaults = {name: p.default for name, p in inspect.signature(MemoryLedger).parameters.items()}
    assert (defaults["scan_depth"], defaults["grants_per_call_max"]) == (SCAN_DEPTH, GRANTS_MAX)
