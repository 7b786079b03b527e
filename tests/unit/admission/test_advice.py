"""What a client is told that would help: the words name what by itself lets its request in."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.admission.advice import may_start, smaller, what_helps
from kvgate.admission.pricing import Priced, price_counted
from kvgate_policies.types import (
    ZERO_COST,
    Endpoint,
    EngineLimits,
    EngineShape,
    EngineUse,
    InferenceRequest,
    LedgerView,
    PromptSize,
    TenantPolicy,
    TenantRules,
    TenantUse,
    TokenCount,
)

SHAPE = EngineShape(block_size=16, max_model_len=4096)
FORECAST = TenantPolicy("t", reservation="forecast")
GUARANTEED = TenantPolicy("t", reservation="guaranteed", max_tokens_default=2048)


def asked(*prompts: int, max_tokens: int | None = None, **more: Any) -> InferenceRequest:
    sizes = tuple(PromptSize(tokens=tokens) for tokens in prompts)
    values: dict[str, Any] = {"endpoint": Endpoint.CHAT, "max_tokens_field": "max_tokens"} | more
    return InferenceRequest(model="m", stream=False, prompts=sizes, max_tokens=max_tokens, **values)


def seen(blocks: int = 100, seqs: int = 16, limit: int | None = None) -> LedgerView:
    engine = EngineUse(EngineLimits("e", SHAPE, blocks, seqs, 8192), ZERO_COST, 0)
    tenants = () if limit is None else (TenantUse("t", TenantRules(), blocks_limit=limit),)
    return LedgerView((engine,), tenants=tenants)


def priced(request: InferenceRequest, tenant: TenantPolicy) -> Priced:
    count = TokenCount(tuple(size.tokens or 0 for size in request.prompts), exact=True)
    price = price_counted(request, count, frozenset({SHAPE}), tenant)
    assert isinstance(price, Priced)
    return price


@pytest.mark.parametrize(
    ("tenant", "request_", "view", "words"),
    [
        # A limit of its own: lower it, by the name that the endpoint has for it.
        (FORECAST, asked(96, max_tokens=3000), seen(), "lower max_tokens"),
        (
            FORECAST,
            asked(96, max_tokens=3000, max_tokens_field="max_output_tokens"),
            seen(),
            "lower max_output_tokens",
        ),
        (GUARANTEED, asked(96), seen(), "set max_tokens"),
        # Several sequences, several prompts.
        (FORECAST, asked(96, max_tokens=1000, n=4), seen(), "lower n or lower max_tokens"),
        (
            FORECAST,
            asked(*[96] * 20, max_tokens=100),
            seen(seqs=4),
            "send fewer prompts in one request",
        ),
        (
            FORECAST,
            asked(800, 800, 800, max_tokens=16),
            seen(),
            "send fewer prompts in one request or shorten the prompt",
        ),
        # min_tokens: a limit below it is none.
        (FORECAST, asked(96, min_tokens=3000), seen(), "lower min_tokens"),
        (
            FORECAST,
            asked(96, min_tokens=3000, max_tokens=3500),
            seen(),
            "lower min_tokens and max_tokens",
        ),
        (FORECAST, asked(96, min_tokens=50, max_tokens=3000), seen(), "lower max_tokens"),
        # The limit of its tenant.
        (FORECAST, asked(1000, max_tokens=100), seen(limit=50), "shorten the prompt"),
        (FORECAST, asked(96, min_tokens=2000), seen(200, limit=50), "lower min_tokens"),
        # Nothing is generated.
        (
            FORECAST,
            asked(800, 800, 800, endpoint=Endpoint.POOLING, max_tokens_field=""),
            seen(),
            "send fewer prompts in one request or shorten the prompt",
        ),
        (FORECAST, asked(2000, endpoint=Endpoint.COMPLETIONS), seen(), "shorten the prompt"),
    ],
)
def test_what_by_itself_is_enough(
    tenant: TenantPolicy, request_: InferenceRequest, view: LedgerView, words: str
):
    price = priced(request_, tenant)
    assert not may_start(price, tenant, view), "or there is nothing to advise"
    assert what_helps(request_, price, tenant, lambda one: may_start(one, tenant, view)) == (words, True)


def test_where_one_thing_is_not_enough_all_are_named():
    request = asked(2000, 2000, max_tokens=2000)
    helps = what_helps(request, priced(request, FORECAST), FORECAST, lambda _: False)
    assert helps == ("send fewer prompts in one request and lower max_tokens and shorten the prompt", False)


def test_a_limit_to_the_end_of_the_window_is_none():
    """Written or not: by forecast it starts, as one without."""
    view = seen(250)
    for request in (asked(96), asked(96, max_tokens=4000), asked(96, max_tokens=4096)):
        assert may_start(priced(request, FORECAST), FORECAST, view)
    assert not may_start(priced(asked(96, max_tokens=3999), FORECAST), FORECAST, seen(200))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (asked(96, max_tokens=50), "lower max_tokens"),
        (asked(96), "set max_tokens"),
        (
            asked(96, 96, n=2, max_tokens=50),
            "send fewer prompts in one request or lower n or lower max_tokens",
        ),
        (asked(96, endpoint=Endpoint.POOLING), "shorten the prompt"),
    ],
)
def test_who_waited_in_vain_is_told_what_its_request_has(request_: InferenceRequest, words: str):
    assert smaller(request_) == words
