"""Counts with the token ids: those of one text, as its tokenizer has them; all else is counted as without."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvgate.tokens import counter_for
from kvgate.tokens.base import TokenizeFailed
from kvgate.tokens.ids import IdsCounter
from kvgate.tokens.learned import LearnedCounter
from kvgate_policies.types import Endpoint, PromptSize
from unit.tokens.test_local import RENDERED, TOKENIZER, USER, chat, folder, no_engine, request_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["folder"]
IDS = array("I", [5, 6, 7, 2**31]).tobytes()
ASKED = chat(USER)


async def by_engine(body: Mapping[str, object]) -> bytes:
    assert body == {"messages": [USER]}
    return IDS


async def broken(_: Mapping[str, object]) -> bytes:
    raise TokenizeFailed


async def counted(_: Mapping[str, object]) -> int:
    return 9


async def test_one_text_is_counted_with_its_ids() -> None:
    counter = counter_for("backend", no_engine, by_engine)
    for count in (await counter.count(ASKED), await counter.count_exactly(ASKED)):
        assert count is not None
        assert (count.tokens, count.exact, count.ids) == ((4,), True, IDS)


@pytest.mark.parametrize(
    "asked",
    [
        request_of({"prompt": "a"}, {"prompt": "b"}),
        replace(ASKED, prompt_tokens_max=3),
        replace(ASKED, endpoint=Endpoint.RESPONSES),
        replace(ASKED, prompts=(PromptSize(tokens=3),)),
        replace(ASKED, prompts=(PromptSize(media_tokens=3, utf8_bytes=20),)),
        replace(ASKED, tokenize=()),
    ],
    ids=["two", "truncated", "responses", "ids", "media", "not countable"],
)
async def test_all_else_is_counted_as_without(asked) -> None:
    without = await counter_for("backend", counted).count(asked)
    assert await counter_for("backend", counted, broken).count(asked) == without
    assert (await counter_for("backend", counted, by_engine).count(asked)).ids is None


async def test_an_engine_that_does_not_say_is_asked_for_the_number() -> None:
    counter = counter_for("backend", counted, broken)
    count = await counter.count(ASKED)
    assert (count.tokens, count.exact, count.ids) == ((9,), True, None)


async def test_what_was_counted_teaches() -> None:
    """Then an estimate is as good as counts of such texts were."""
    learned = LearnedCounter(None)
    counter = IdsCounter(learned, by_engine)
    before = (await learned.count(ASKED)).total
    for _ in range(300):
        await counter.count(ASKED)
    assert (await learned.count(ASKED)).total < before
    for _ in range(300):
        counter.learn(ASKED, 4 * before)
    assert (await learned.count(ASKED)).total > before


@pytest.mark.parametrize(
    ("body", "text", "specials"),
    [
        ({"messages": [USER]}, RENDERED + "<|assistant|>", False),
        ({"prompt": "the engine never preempts"}, "the engine never preempts", True),
        ({"prompt": "the engine", "add_special_tokens": False}, "the engine", False),
    ],
)
async def test_the_models_own_tokenizer_says_the_ids(
    folder: Path, body: dict[str, object], text: str, specials: bool
) -> None:
    counter = counter_for(f"local:{folder}", no_engine, broken)
    count = await counter.count(request_of(body))
    ids = TOKENIZER.encode(text, add_special_tokens=specials).ids
    assert (list(array("I", count.ids or b"")), count.tokens) == (ids, (len(ids),))


async def test_a_chat_that_is_not_rendered_is_estimated(folder: Path) -> None:
    counter = counter_for(f"local:{folder}", no_engine, broken)
    count = await counter.count(
        request_of({"messages": [USER], "chat_template": "{{ raise_exception('no') }}"})
    )
    assert (count.exact, count.ids) == (False, None)


def test_learned_counts_have_none() -> None:
    assert isinstance(counter_for("learned", no_engine, by_engine), LearnedCounter)
