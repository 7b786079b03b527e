"""What a request costs, and when an estimate is not good enough to decide by."""

from __future__ import annotations

import pytest

from kvgate.admission.contract import Answer, Reason
from kvgate.admission.pricing import Priced, Pricer, price_counted, reprice
from kvgate_policies.types import (
    TO_WINDOW,
    Endpoint,
    EngineShape,
    InferenceRequest,
    KVCost,
    PromptSize,
    TenantPolicy,
    TokenCount,
)

SHAPE = EngineShape(block_size=16, max_model_len=1024, prefix_caching=True)
LONG = EngineShape(block_size=16, max_model_len=4096, prefix_caching=True)
TENANT = TenantPolicy(max_tokens_default=256)


def request(
    endpoint: Endpoint = Endpoint.COMPLETIONS,
    max_tokens: int | None = 100,
    n: int = 1,
    cut: int | None = None,
) -> InferenceRequest:
    return InferenceRequest(
        endpoint, "m", stream=False, prompts=(PromptSize(utf8_bytes=1),), max_tokens=max_tokens,
        max_tokens_field="max_tokens", n=n, prompt_tokens_max=cut,
    )  # fmt: skip


class Counter:
    """Says what it is told to."""

    def __init__(self, estimate: int, exact: int | None) -> None:
        self.estimate, self.exact, self.asked = estimate, exact, 0

    async def count(self, request: InferenceRequest) -> TokenCount:
        return TokenCount((self.estimate,), exact=False)

    async def count_exactly(self, request: InferenceRequest) -> TokenCount | None:
        self.asked += 1
        return None if self.exact is None else TokenCount((self.exact,), exact=True)

    def learn(self, request: InferenceRequest, prompt_tokens: int) -> None: ...


class Pool:
    def __init__(self, *shapes: EngineShape) -> None:
        self._shapes = frozenset(shapes)

    def shapes(self) -> frozenset[EngineShape]:
        return self._shapes


async def price(counter: Counter, asked: InferenceRequest, *shapes: EngineShape) -> Priced | Answer:
    pricer = Pricer(counter, Pool(*(shapes or (SHAPE,))))  # type: ignore[arg-type]
    return await pricer.price(asked, TENANT)


async def test_an_estimate_within_all_bounds_is_not_asked_about():
    counter = Counter(200, 150)
    priced = await price(counter, request())
    assert isinstance(priced, Priced)
    assert (counter.asked, priced.costs[SHAPE]) == (0, KVCost(19, 1, 200))


@pytest.mark.parametrize(
    ("estimate", "max_tokens"), [(1024, 100), (1500, 100), (900, 124), (900, 1000), (10, 1014), (10, 1024)]
)
async def test_an_estimate_that_crosses_a_bound_is_checked_against_the_engine(estimate: int, max_tokens: int):
    counter = Counter(estimate, 500)
    priced = await price(counter, request(max_tokens=max_tokens))
    assert isinstance(priced, Priced)
    assert (counter.asked, priced.count.exact) == (1, True)


async def test_only_an_exact_count_refuses_a_prompt():
    refused = await price(Counter(2000, 1024), request())
    assert isinstance(refused, Answer)
    assert (refused.reason, refused.code) == (Reason.NEVER_FITS, "context_length_exceeded")
    assert "1024" in refused.message
    clamped = await price(Counter(2000, None), request())
    assert isinstance(clamped, Priced)
    assert clamped.costs[SHAPE] == KVCost(64, 1, 1023)


async def test_engines_whose_window_the_prompt_fills_are_left_out():
    priced = await price(Counter(2000, 2000), request(), SHAPE, LONG)
    assert isinstance(priced, Priced)
    assert set(priced.costs) == {LONG}


def test_a_limit_only_the_larger_window_takes_goes_there():
    exact = TokenCount((100,), exact=True)
    priced = price_counted(request(max_tokens=2000), exact, frozenset({SHAPE, LONG}), TENANT)
    assert isinstance(priced, Priced)
    assert (set(priced.costs), priced.budget.rewrite) == ({LONG}, None)


def test_the_default_that_is_written_suits_the_smallest_window():
    exact = TokenCount((100,), exact=True)
    tenant = TenantPolicy(max_tokens_default=2048)
    priced = price_counted(request(Endpoint.CHAT, None), exact, frozenset({SHAPE, LONG}), tenant)
    assert isinstance(priced, Priced)
    assert priced.budget.max_tokens <= 924
    assert priced.budget.rewrite is None or priced.budget.rewrite <= 1024


def test_a_prompt_that_the_engine_cuts_is_never_too_long():
    priced = price_counted(
        request(cut=TO_WINDOW), TokenCount((9000,), exact=True), frozenset({SHAPE, LONG}), TENANT
    )
    assert isinstance(priced, Priced)
    assert priced.costs == {SHAPE: KVCost(64, 1, 4095), LONG: KVCost(256, 1, 4095)}


def test_pooling_may_fill_the_window_and_costs_its_prompt():
    exact = TokenCount((1024,), exact=True)
    priced = price_counted(request(Endpoint.POOLING, None), exact, frozenset({SHAPE}), TENANT)
    assert isinstance(priced, Priced)
    assert priced.costs[SHAPE] == KVCost(64, 1, 1024)


def test_shared_prompt_blocks_are_only_counted_on_when_the_count_is_exact():
    def blocks(exact: bool) -> int:
        priced = price_counted(request(n=4), TokenCount((320,), exact), frozenset({SHAPE}), TENANT)
        assert isinstance(priced, Priced)
        return priced.costs[SHAPE].blocks

    assert (blocks(exact=True), blocks(exact=False)) == (19 + 4 * 8, 4 * 27)


def test_reprice_only_ever_corrects_upwards():
    asked = request()
    priced = price_counted(asked, TokenCount((100,), exact=False), frozenset({SHAPE}), TENANT)
    assert isinstance(priced, Priced)
    assert reprice(asked, priced, 100, SHAPE) is None
    assert reprice(asked, priced, 60, SHAPE) is None
    assert reprice(asked, priced, 300, SHAPE) == KVCost(25, 1, 300)
    assert reprice(asked, priced, 5000, SHAPE) == KVCost(64, 1, 1024)
