"""Every row of the output rules, and that the charge covers whatever vLLM makes of the body it gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate_policies.tenancy import OutputBudget, output_budget
from kvgate_policies.types import Endpoint, TenantPolicy, TokenCount

L = 4096
OPEN = (Endpoint.CHAT, Endpoint.CHAT_BATCH, Endpoint.RESPONSES, Endpoint.GENERATE)
LIMITED = (*OPEN, Endpoint.COMPLETIONS, Endpoint.MESSAGES)
"""Endpoints where a limit of the client counts as one."""


def budget(
    endpoint: Endpoint,
    asked: int | None,
    prompt: int | tuple[int, ...] = 100,
    *,
    exact: bool = True,
    default: int | None = 2048,
    cap: int | None = None,
    min_tokens: int = 0,
) -> OutputBudget:
    tokens = prompt if isinstance(prompt, tuple) else (prompt,)
    policy = TenantPolicy(max_tokens_default=default, max_tokens_cap=cap)
    return output_budget(endpoint, asked, TokenCount(tokens, exact), L, policy, min_tokens)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("endpoint", OPEN)
def test_unset_gets_the_default_charged_and_written(endpoint: Endpoint, exact: bool) -> None:
    assert budget(endpoint, None, exact=exact) == OutputBudget(2048, 2048)


@pytest.mark.parametrize("endpoint", OPEN)
def test_unset_without_a_default_is_charged_the_rest_of_the_window(endpoint: Endpoint) -> None:
    assert budget(endpoint, None, 100, default=None) == OutputBudget(L - 100, None)
    assert budget(endpoint, None, 100, exact=False, default=None) == OutputBudget(L, None)


@pytest.mark.parametrize("endpoint", OPEN)
@pytest.mark.parametrize(("prompt", "expected"), [(2047, 2048), (2048, None), (4000, None), (5000, None)])
def test_default_is_not_written_where_the_engine_clamps_anyway(
    endpoint: Endpoint, prompt: int, expected: int | None
) -> None:
    assert budget(endpoint, None, prompt) == OutputBudget(max(min(2048, L - prompt), 1), expected)


@pytest.mark.parametrize("default", [L, L + 1, 10 * L])
def test_default_above_the_model_is_never_written(default: int) -> None:
    """Written, it would turn a good request into vLLM's 400."""
    assert budget(Endpoint.CHAT, None, 100, default=default) == OutputBudget(L - 100, None)
    assert budget(Endpoint.CHAT, None, 100, exact=False, default=default) == OutputBudget(L, None)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("default", [None, 4, 2048])
def test_completions_unset_is_sixteen_whatever_the_default(exact: bool, default: int | None) -> None:
    assert budget(Endpoint.COMPLETIONS, None, exact=exact, default=default) == OutputBudget(16, None)


def test_completions_unset_is_lowered_by_a_cap_and_clamped_by_the_window() -> None:
    assert budget(Endpoint.COMPLETIONS, None, cap=8) == OutputBudget(8, 8)
    assert budget(Endpoint.COMPLETIONS, None, L - 5) == OutputBudget(5, None)
    assert budget(Endpoint.COMPLETIONS, None, L - 5, default=2) == OutputBudget(5, None)


@pytest.mark.parametrize("cap", [None, 8])
def test_messages_unset_is_left_to_the_engine(cap: int | None) -> None:
    assert budget(Endpoint.MESSAGES, None, cap=cap) == OutputBudget(1, None)


@pytest.mark.parametrize("endpoint", LIMITED)
@pytest.mark.parametrize("asked", [1, 100, 2049, L - 101])
def test_own_limit_is_charged_and_left(endpoint: Endpoint, asked: int) -> None:
    assert budget(endpoint, asked) == OutputBudget(asked, None)


@pytest.mark.parametrize("endpoint", LIMITED)
@pytest.mark.parametrize("asked", [L - 100, L - 99, L])
def test_window_sized_limit_gets_the_default(endpoint: Endpoint, asked: int) -> None:
    assert budget(endpoint, asked) == OutputBudget(2048, 2048)
    assert budget(endpoint, asked, default=None) == OutputBudget(L - 100, None)


@pytest.mark.parametrize("asked", [L - 100, L - 1])
def test_estimate_makes_nothing_window_sized(asked: int) -> None:
    assert budget(Endpoint.CHAT, asked, exact=False) == OutputBudget(asked, None)


def test_limit_of_the_whole_model_is_window_sized_for_any_prompt() -> None:
    assert budget(Endpoint.CHAT, L, exact=False) == OutputBudget(2048, 2048)


def test_default_never_raises_a_window_sized_limit() -> None:
    assert budget(Endpoint.CHAT, 500, L - 500, default=2048) == OutputBudget(500, None)
    assert budget(Endpoint.CHAT, 900, L - 500, default=300) == OutputBudget(300, 300)
    assert budget(Endpoint.CHAT, 900, L - 500, default=600) == OutputBudget(500, None)


@pytest.mark.parametrize("endpoint", [*LIMITED, Endpoint.AUDIO])
@pytest.mark.parametrize("cap", [None, 10])
def test_limit_above_the_model_goes_through_for_the_engine_to_refuse(
    endpoint: Endpoint, cap: int | None
) -> None:
    assert budget(endpoint, L + 1, cap=cap) == OutputBudget(L - 100, None)
    assert budget(endpoint, L + 1, exact=False, cap=cap) == OutputBudget(L, None)


@pytest.mark.parametrize("endpoint", [*LIMITED, Endpoint.AUDIO])
@pytest.mark.parametrize("asked", [0, -1])
def test_limit_below_one_goes_through_for_the_engine_to_refuse(endpoint: Endpoint, asked: int) -> None:
    assert budget(endpoint, asked) == OutputBudget(1, None)


@pytest.mark.parametrize("endpoint", LIMITED)
def test_cap_lowers_limits_and_defaults(endpoint: Endpoint) -> None:
    assert budget(endpoint, 1000, cap=512) == OutputBudget(512, 512)
    assert budget(endpoint, 512, cap=512) == OutputBudget(512, None)
    assert budget(endpoint, L, cap=512) == OutputBudget(512, 512)
    assert budget(endpoint, 1000, L - 300, cap=512) == OutputBudget(300, None)


@pytest.mark.parametrize("endpoint", OPEN)
def test_cap_lowers_the_default_and_holds_without_one(endpoint: Endpoint) -> None:
    assert budget(endpoint, None, cap=512) == OutputBudget(512, 512)
    assert budget(endpoint, None, default=None, cap=512) == OutputBudget(512, 512)


def test_pooling_generates_nothing() -> None:
    for asked in (None, 5, L + 1):
        assert budget(Endpoint.POOLING, asked, cap=1) == OutputBudget(1, None)


def test_audio_is_charged_and_never_written() -> None:
    assert budget(Endpoint.AUDIO, None, cap=5) == OutputBudget(L, None)
    assert budget(Endpoint.AUDIO, 300, cap=5) == OutputBudget(300, None)


def test_longest_prompt_decides_and_the_shortest_is_covered() -> None:
    assert budget(Endpoint.COMPLETIONS, L - 3000, (3000, 10)) == OutputBudget(L - 3000, None)
    assert budget(Endpoint.CHAT_BATCH, 3000, (3000, 10)) == OutputBudget(2048, 2048)
    assert budget(Endpoint.CHAT_BATCH, 3000, (3000, 10), default=None) == OutputBudget(3000, None)
    assert budget(Endpoint.CHAT_BATCH, None, (3000, 10), default=None) == OutputBudget(L - 10, None)


def test_default_leaves_room_for_the_least_the_client_wants() -> None:
    assert budget(Endpoint.CHAT, None, default=256, min_tokens=300) == OutputBudget(300, 300)
    assert budget(Endpoint.CHAT, None, default=256, min_tokens=300, cap=100) == OutputBudget(100, 100)


@pytest.mark.parametrize(
    ("asked", "exact", "charged"),
    [
        (None, True, L - 100),
        (None, False, L),
        (300, True, 300),
        (L - 100, True, L - 100),
        (L, False, L),
        (L + 1, True, L - 100),
    ],
)
def test_without_rewriting_nothing_is_written_and_what_may_come_is_charged(
    asked: int | None, exact: bool, charged: int
) -> None:
    policy = TenantPolicy(max_tokens_default=50, max_tokens_cap=200, rewrite_max_tokens=False)
    for endpoint in OPEN:
        counted = TokenCount((100,), exact)
        assert output_budget(endpoint, asked, counted, L, policy) == OutputBudget(charged, None)


def test_request_without_prompts_is_no_crash() -> None:
    assert budget(Endpoint.CHAT, None, ()) == OutputBudget(2048, 2048)


def generated_most(endpoint: Endpoint, value: int | None, prompt: int) -> int:
    """What vLLM may generate for one prompt from the value in the body; 0 where it answers 400."""
    window = L - prompt
    if value is None:
        value = {Endpoint.COMPLETIONS: 16, Endpoint.MESSAGES: 0, Endpoint.POOLING: 1}.get(endpoint, window)
    if endpoint is Endpoint.POOLING:
        return 1
    if value > L or value < 1 or window < 1:
        return 0
    return min(window, value)


maybe_limit = st.none() | st.integers(1, 2 * L)
asked_values = st.none() | st.integers(-2, 2 * L) | st.integers(L - 120, L + 2)


@given(
    endpoint=st.sampled_from(Endpoint),
    asked=asked_values,
    prompts=st.lists(st.integers(1, L + 50), min_size=1, max_size=4),
    error=st.none() | st.floats(0.2, 3.0),
    default=maybe_limit,
    cap=maybe_limit,
)
def test_charge_covers_and_rewrite_only_shortens(
    endpoint: Endpoint,
    asked: int | None,
    prompts: list[int],
    error: float | None,
    default: int | None,
    cap: int | None,
) -> None:
    counted = tuple(round(p * (error or 1.0)) for p in prompts)
    result = budget(endpoint, asked, counted, exact=error is None, default=default, cap=cap)
    in_body = asked if result.rewrite is None else result.rewrite
    for prompt in prompts:
        assert result.max_tokens >= generated_most(endpoint, in_body, prompt)
        assert generated_most(endpoint, in_body, prompt) <= generated_most(endpoint, asked, prompt)
    if result.rewrite is not None:
        assert asked is None or result.rewrite < asked
        assert result.rewrite == result.max_tokens
        assert 1 <= result.rewrite <= L
