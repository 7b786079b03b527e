"""The learned counter and the one that always asks: when is an engine asked, and what if it can't count?"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvgate.tokens import exact
from kvgate.tokens.backend import BackendCounter
from kvgate.tokens.base import TokenizeFailed
from kvgate.tokens.learned import LearnedCounter
from kvgate_policies.types import Endpoint, InferenceRequest, PromptSize

if TYPE_CHECKING:
    from collections.abc import Mapping


class Engine:
    """Counts four bytes a token and one for the beginning, as long as it is up."""

    def __init__(self) -> None:
        self.up = True
        self.broken = False
        self.asked = 0
        self.together = 0
        self.together_max = 0

    async def tokenize(self, body: Mapping[str, object]) -> int:
        self.asked += 1
        self.together += 1
        self.together_max = max(self.together, self.together_max)
        await asyncio.sleep(0)
        self.together -= 1
        if self.broken:
            raise KeyError("count")
        if not self.up:
            raise TokenizeFailed
        return len(str(body["prompt"])) // 4 + 1


def completion(*texts: str, model: str | None = "m", **changes: object) -> InferenceRequest:
    request = InferenceRequest(
        endpoint=Endpoint.COMPLETIONS,
        model=model,
        stream=False,
        prompts=tuple(PromptSize(utf8_bytes=len(text)) for text in texts),
        max_tokens=16,
        max_tokens_field="max_tokens",
        tokenize=tuple({"prompt": text} for text in texts),
    )
    return replace(request, **changes)  # type: ignore[arg-type]


def by_ids(*counts: int) -> InferenceRequest:
    return completion(prompts=tuple(PromptSize(tokens=count) for count in counts))


HELLO = completion("h" * 400)


async def test_first_fifty_are_exact_then_one_in_a_hundred() -> None:
    engine = Engine()
    counter = LearnedCounter(engine.tokenize)
    counts = [await counter.count(HELLO) for _ in range(1050)]
    assert all(count.exact for count in counts[:50])
    assert [count.exact for count in counts].count(True) == 50 + 10 == engine.asked
    assert {count.tokens for count in counts if count.exact} == {(101,)}
    assert 101 <= counts[-2].total <= 110


async def test_each_model_starts_anew() -> None:
    engine = Engine()
    counter = LearnedCounter(engine.tokenize)
    for _ in range(60):
        await counter.count(HELLO)
    assert (await counter.count(completion("h" * 400, model="other"))).exact


async def test_failing_engine_means_an_estimate_and_no_endless_asking() -> None:
    engine = Engine()
    engine.up = False
    counter = LearnedCounter(engine.tokenize)
    counts = [await counter.count(HELLO) for _ in range(250)]
    assert not any(count.exact for count in counts)
    assert counts[0].total >= 200
    assert engine.asked == 52
    assert await counter.count_exactly(HELLO) is None


@pytest.mark.parametrize("counter_of", [LearnedCounter, BackendCounter])
async def test_count_never_raises_even_when_the_engine_s_client_has_a_bug(
    counter_of: type[LearnedCounter | BackendCounter], caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine()
    engine.broken = True
    assert not (await counter_of(engine.tokenize).count(HELLO)).exact
    assert "KeyError" in caplog.text


async def test_cancelling_a_count_is_not_swallowed() -> None:
    async def never(body: Mapping[str, object]) -> int:
        await asyncio.Event().wait()
        return 1

    task = asyncio.create_task(LearnedCounter(never).count(HELLO))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_usage_teaches_where_no_engine_can_be_asked() -> None:
    counter = LearnedCounter(None)
    before = (await counter.count(HELLO)).total
    for _ in range(20):
        counter.learn(HELLO, 101)
    after = await counter.count(HELLO)
    assert 101 <= after.total <= 110 < before
    assert not after.exact


async def test_usage_of_truncated_or_media_prompts_teaches_nothing() -> None:
    counter = LearnedCounter(None)
    before = (await counter.count(HELLO)).total
    picture = completion("h" * 400, prompts=(PromptSize(utf8_bytes=400, media_tokens=9),))
    for _ in range(20):
        counter.learn(replace(HELLO, prompt_tokens_max=5), 5)
        counter.learn(picture, 2000)
        counter.learn(by_ids(7), 7)
    assert (await counter.count(HELLO)).total == before


@pytest.mark.parametrize("counter_of", [LearnedCounter, BackendCounter])
async def test_token_ids_are_exact_and_ask_nobody(counter_of: type[LearnedCounter | BackendCounter]) -> None:
    engine = Engine()
    counter = counter_of(engine.tokenize)
    count = await counter.count(by_ids(5, 900))
    assert (count.tokens, count.exact) == ((5, 900), True)
    assert await counter.count_exactly(by_ids(5, 900)) == count
    assert engine.asked == 0


async def test_exact_count_is_had_whenever_it_is_asked_for() -> None:
    engine = Engine()
    counter = LearnedCounter(engine.tokenize)
    for _ in range(60):
        await counter.count(HELLO)
    assert not (await counter.count(HELLO)).exact
    exactly = await counter.count_exactly(HELLO)
    assert exactly is not None
    assert (exactly.tokens, exactly.exact) == ((101,), True)


@pytest.mark.parametrize(("most", "tokens"), [(50, 50), (101, 101), (1000, 101), (-1, 101)])
async def test_truncation_clips_exact_counts(most: int, tokens: int) -> None:
    request = replace(HELLO, prompt_tokens_max=most)
    assert (await BackendCounter(Engine().tokenize).count(request)).tokens == (tokens,)
    ids = replace(by_ids(101), prompt_tokens_max=most)
    assert (await LearnedCounter(None).count(ids)).tokens == (tokens,)


async def test_truncation_clips_estimates() -> None:
    counter = LearnedCounter(None)
    whole = (await counter.count(HELLO)).total
    clipped = await counter.count(replace(HELLO, prompt_tokens_max=whole - 1))
    assert (clipped.total, clipped.exact) == (whole - 1, False)
    assert (await counter.count(replace(HELLO, prompt_tokens_max=-1))).total == whole


async def test_truncated_prompts_teach_their_whole_length() -> None:
    engine = Engine()
    counter = LearnedCounter(engine.tokenize)
    for _ in range(60):
        await counter.count(replace(HELLO, prompt_tokens_max=3))
    assert (await counter.count(HELLO)).total >= 101


async def test_list_of_prompts_is_counted_one_by_one_and_not_all_at_once() -> None:
    engine = Engine()
    request = completion(*("h" * 4 * i for i in range(40)))
    count = await BackendCounter(engine.tokenize).count(request)
    assert (count.tokens, count.exact) == (tuple(i + 1 for i in range(40)), True)
    assert 1 < engine.together_max <= exact.ASKED_AT_ONCE_MAX


async def test_very_long_list_is_estimated() -> None:
    engine = Engine()
    request = completion(*["hello"] * (exact.ASKED_MAX + 1))
    count = await BackendCounter(engine.tokenize).count(request)
    assert engine.asked == 0
    assert not count.exact
    assert len(count.tokens) == exact.ASKED_MAX + 1


async def test_more_text_than_any_window_holds_is_estimated() -> None:
    engine = Engine()
    request = completion("h" * exact.ASKED_BYTES_MAX, "h")
    assert not (await BackendCounter(engine.tokenize).count(request)).exact
    assert engine.asked == 0
    await BackendCounter(engine.tokenize).count(completion("h" * exact.ASKED_BYTES_MAX))
    assert engine.asked == 1


@pytest.mark.parametrize("counter_of", [LearnedCounter, BackendCounter])
async def test_media_and_bodies_that_cannot_be_counted_are_estimated(
    counter_of: type[LearnedCounter | BackendCounter],
) -> None:
    engine = Engine()
    counter = counter_of(engine.tokenize)
    picture = completion("look", prompts=(PromptSize(utf8_bytes=4, media_tokens=1600),))
    bodyless = replace(HELLO, tokenize=())
    for request in (picture, bodyless):
        count = await counter.count(request)
        assert not count.exact
        assert await counter.count_exactly(request) is None
    assert (await counter.count(picture)).total > 1600
    assert engine.asked == 0


async def test_backend_always_asks_and_teaches_its_fallback() -> None:
    engine = Engine()
    counter = BackendCounter(engine.tokenize)
    for _ in range(200):
        assert (await counter.count(HELLO)).exact
    assert engine.asked == 200
    engine.up = False
    fallback = await counter.count(HELLO)
    assert not fallback.exact
    assert 101 <= fallback.total <= 110


async def test_request_without_prompts_counts_as_nothing() -> None:
    engine = Engine()
    for counter in (LearnedCounter(engine.tokenize), BackendCounter(engine.tokenize)):
        assert (await counter.count(completion())).tokens == ()
