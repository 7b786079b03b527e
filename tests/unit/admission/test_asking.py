"""What a request asks of its ledger: its charge and its place."""

from __future__ import annotations

import pytest

from kvgate.admission.asking import ask_for, rank_in_ms
from kvgate.admission.contract import Call
from kvgate.admission.pace import MEAN_WEIGHT, TENANTS_MAX, Mean, Pace, Recent
from kvgate.admission.pricing import Priced, price_counted, served, service
from kvgate.ledger.base import Served
from kvgate_policies.types import (
    Endpoint,
    EngineShape,
    InferenceRequest,
    Mode,
    PriorityClass,
    PromptSize,
    TenantPolicy,
    TokenCount,
)

SHAPE = EngineShape(block_size=16, max_model_len=4096)


def priced(
    *prompts: int, max_tokens: int | None = 50, n: int = 1, endpoint: Endpoint = Endpoint.COMPLETIONS
) -> Priced:
    request = InferenceRequest(
        endpoint, "m", stream=False, prompts=(PromptSize(),) * len(prompts), max_tokens=max_tokens,
        max_tokens_field="max_tokens", n=n,
    )  # fmt: skip
    result = price_counted(request, TokenCount(prompts, exact=True), frozenset({SHAPE}), TenantPolicy())
    assert isinstance(result, Priced)
    return result


def a_call(tenant: TenantPolicy, deadline_s: float | None = None) -> Call:
    return Call(
        "POST", "/v1/completions", [], b"", 0.0, tenant, PriorityClass.BATCH, deadline_s, lambda _: b""
    )


@pytest.mark.parametrize(
    ("one", "work", "tokens"),
    [
        (priced(100), 200, 150),
        (priced(100, n=3), 100 + 2 * 150, 250),
        (priced(100, 200, n=2), 300 + 2 * 200, 500),
        (priced(100, 200, endpoint=Endpoint.POOLING), 300, 300),
    ],
)
def test_the_charge_is_prompt_plus_outputs_of_all_sequences(one: Priced, work: int, tokens: int):
    assert (one.work, one.tokens) == (work, tokens)


def test_the_correction_takes_the_engines_word_before_our_count():
    assert served(priced(100), 90, 7) == Served(104, 97)
    assert served(priced(100), None, 7) == Served(114, 107)
    assert served(priced(100), 0, 0) == Served(1, 0)
    assert service(0, 0) == 1


@pytest.mark.parametrize("mode", ["enforce", "observe", "off"])
def test_an_ask_says_all_that_the_ledger_goes_by(mode: Mode):
    tenant = TenantPolicy("chat", queue_depth_max=7, order="deadline", mode=mode)
    one = priced(100)
    ask = ask_for("r1", a_call(tenant), one, mean_work=1.0, left_s=2.5, avoid=frozenset({"e"}))
    assert (ask.tenant, ask.queue_depth_max, ask.priority) == ("chat", 7, PriorityClass.BATCH)
    assert (ask.work, ask.tokens, ask.rank_in_ms, ask.costs) == (200, 150, 2500, one.costs)
    assert ask.force is (mode != "enforce")
    assert ask.avoid == {"e"}


@pytest.mark.parametrize(
    ("order", "work", "rank"),
    [
        ("fifo", 1, None),
        ("deadline", 1, 30_000),
        ("shortest", 100, 10_000),  # the mean: a third of the way
        ("shortest", 10, 1_000),
        ("shortest", 300, 30_000),
        ("shortest", 5000, 30_000),  # never later than its deadline
    ],
)
def test_the_rank_by_each_order(order, work: float, rank: int | None):
    assert rank_in_ms(order, work, mean_work=100.0, left_s=30.0) == rank


def test_a_rank_is_never_in_the_past():
    assert rank_in_ms("deadline", 1, 1.0, left_s=-3.0) == 0


@pytest.mark.parametrize(("deadline_s", "wait_s"), [(None, 30.0), (0.5, 0.5), (90.0, 30.0)])
def test_a_deadline_only_shortens_the_tenants_wait(deadline_s: float | None, wait_s: float):
    assert a_call(TenantPolicy(), deadline_s).wait_s_max == wait_s


def test_a_mean_is_plain_at_first_and_then_follows():
    mean = Mean()
    for value in (10.0, 20.0, 30.0):
        mean = mean.observe(value)
    assert mean.value == pytest.approx(20.0)
    for _ in range(1000):
        mean = mean.observe(100.0)
    assert mean.value == pytest.approx(100.0, rel=1e-3)
    assert mean.observe(200.0).value - mean.value == pytest.approx((200.0 - mean.value) * MEAN_WEIGHT)


def test_only_the_tenants_seen_last_are_remembered():
    recent = Recent(0)
    recent["first"] = 1
    for number in range(TENANTS_MAX - 1):
        recent[f"t{number}"] = 1
    recent["first"] = 2  # seen again
    recent["late"] = 3
    assert (recent["first"], recent["late"], recent["t0"]) == (2, 3, 0)


def test_a_tenant_without_grants_is_taken_to_get_what_the_pool_grants():
    pace = Pace()
    for tick in range(100):
        pace.granted("busy", tick * 0.1)
    pace.granted("slow", 9.9)
    assert pace.grants_per_s("busy", 10.0) == pytest.approx(10.0, rel=0.1)
    assert pace.grants_per_s("slow", 10.0) == pytest.approx(1.0, rel=0.2)
    assert pace.grants_per_s("new", 10.0) == pytest.approx(10.0, rel=0.1)
    assert Pace().grants_per_s("new", 10.0) == 0.0
