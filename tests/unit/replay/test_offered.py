"""From the lines of a log to what is offered: what is known, what is guessed, what is left out."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.replay.offered import take
from kvgate.telemetry.request_line import LoggedRequest
from kvgate_policies.types import Endpoint, PriorityClass


def logged(**more: Any) -> LoggedRequest:
    known: dict[str, Any] = {
        "arrived": 100.0, "tenant": "chat", "endpoint": "chat", "outcome": "served", "total_s": 4.0, "queue_s": 1.0,
        "prompt_tokens": 90, "prompt_tokens_counted": 100, "completion_tokens": 20, "max_tokens_charged": 64,
    }  # fmt: skip
    return LoggedRequest(**(known | more))


def test_what_is_known_is_taken_as_it_is():
    line = logged(
        class_="batch",
        class_asked="batch",
        deadline_s=2.5,
        max_tokens_asked=64,
        stream=True,
        endpoint="completions",
    )
    [one] = take([line]).requests
    assert (one.arrived_s, one.tenant, one.prompt_tokens, one.counted_tokens) == (0.0, "chat", 90, 100)
    assert (one.output_tokens, one.max_tokens, one.exact, one.stream) == (20, 64, False, True)
    assert (one.priority, one.deadline_s, one.endpoint) == (PriorityClass.BATCH, 2.5, Endpoint.COMPLETIONS)
    assert (one.patience_s, one.seen_enough_s) == (None, None)


def test_an_old_log_without_the_newer_fields_is_read():
    [one] = take([logged(class_="batch")]).requests
    assert (one.priority, one.deadline_s) == (None, None)


def test_several_prompts_and_sequences_are_of_one_size():
    [one] = take([logged(prompts=2, n=3, prompt_tokens=91, completion_tokens=61)]).requests
    assert (one.prompts, one.n, one.prompt_tokens, one.output_tokens) == (2, 3, 46, 11)


def test_they_are_put_in_the_order_of_arrival_from_zero_on():
    taken = take([logged(arrived=107.0), logged(arrived=105.0), logged(arrived=106.5)])
    assert [one.arrived_s for one in taken.requests] == [0.0, 1.5, 2.0]
    assert taken.out_of_order == 0, "a log has its lines in the order of the ends"
    assert take([logged(arrived=2.0), logged(arrived=1.0)], is_log=False).out_of_order == 1


def test_who_left_leaves_again():
    waiting = logged(outcome="client_gone", queue_s=None, total_s=3.0, completion_tokens=None)
    reading = logged(outcome="client_gone", queue_s=1.0, total_s=3.0, completion_tokens=None)
    one, other = take([waiting, reading]).requests
    assert (one.patience_s, one.seen_enough_s) == (3.0, None)
    assert (other.patience_s, other.seen_enough_s) == (None, 2.0)


@pytest.mark.parametrize(
    "line",
    [
        logged(outcome="rejected_bad_request"),
        logged(outcome="rejected_unauthorized"),
        logged(outcome="rejected_never_fits", prompt_tokens=None, prompt_tokens_counted=None),
        logged(endpoint="audio"),
        logged(endpoint="of a later version"),
    ],
)
def test_what_every_policy_would_refuse_is_left_out(line: LoggedRequest):
    taken = take([line, logged()])
    assert (len(taken.requests), taken.left_out) == (1, 1)


def refused(**more: Any) -> LoggedRequest:
    unknown = {
        "outcome": "rejected_queue_full",
        "queue_s": None,
        "prompt_tokens": None,
        "completion_tokens": None,
    }
    return logged(**(unknown | more))


def test_a_length_nobody_saw_is_that_of_another_of_the_same_tenant():
    others = [logged(tenant="batch", completion_tokens=900, max_tokens_charged=2000)] * 20
    taken = take([*others, logged(completion_tokens=33), refused(arrived=101.0, max_tokens_asked=500)])
    assert taken.requests[-1].output_tokens == 33
    assert taken.guessed == 1


def test_one_that_ran_into_its_limit_makes_the_other_run_into_its_own():
    full = logged(completion_tokens=64, max_tokens_charged=64)
    taken = take([full, refused(arrived=101.0, max_tokens_asked=500)])
    assert taken.requests[-1].output_tokens == 500


def test_one_that_nothing_but_its_limit_would_have_ended_comes_to_its_limit():
    taken = take(
        [logged(completion_tokens=33), refused(arrived=101.0, max_tokens_asked=500, ignore_eos=True)]
    )
    assert (taken.requests[-1].output_tokens, taken.requests[-1].ignore_eos) == (500, True)


def test_a_guess_is_never_above_the_limit_and_always_something():
    taken = take(
        [logged(completion_tokens=400, max_tokens_charged=2048), refused(arrived=101.0, max_tokens_asked=7)]
    )
    assert taken.requests[-1].output_tokens == 7
    alone = take([refused(max_tokens_charged=None)])
    assert alone.requests[0].output_tokens == 1


def test_the_same_seed_guesses_the_same():
    lines = [logged(arrived=float(n), completion_tokens=n, max_tokens_charged=2048) for n in range(1, 60)]
    lines += [refused(arrived=100.0 + n, max_tokens_charged=2048) for n in range(20)]
    first, again, other = (take(lines, seed=seed).requests for seed in (1, 1, 2))
    assert first == again
    assert first != other
