from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.tokens import ratios
from kvgate.tokens.ratios import ModelRatios, Ratios, Script
from kvgate_policies.types import PromptSize


def text(utf8_bytes: int, dense_bytes: int = 0, messages: int = 1) -> PromptSize:
    return PromptSize(utf8_bytes=utf8_bytes, dense_bytes=dense_bytes, messages=messages)


def truth(prompt: PromptSize, latin: float, dense: float = 0.4, template: int = 25) -> int:
    """What a tokenizer with these tokens per byte makes of it."""
    latin_bytes = prompt.utf8_bytes - prompt.dense_bytes
    return round(latin * latin_bytes + dense * prompt.dense_bytes) + template + 4 * prompt.messages


def taught(latin: float, spread: float = 0.0, count: int = 400) -> ModelRatios:
    model, rng = ModelRatios(), random.Random(7)
    for _ in range(count):
        prompt = text(int(10 ** rng.uniform(1, 5)))
        model.learn((prompt,), truth(prompt, latin * rng.uniform(1 - spread, 1 + spread)))
    return model


@pytest.mark.parametrize("size_bytes", [1, 100, 3000, 30_000, 1_000_000])
def test_start_is_careful(size_bytes: int) -> None:
    """English is at 0.22 to 0.25 tokens a byte, digits and code reach a half, Chinese 0.25 to 0.5."""
    model = ModelRatios()
    assert model.estimate(text(size_bytes)) >= truth(text(size_bytes), 0.5)
    assert model.estimate(text(size_bytes, size_bytes)) >= truth(text(size_bytes), 0.9)


@pytest.mark.parametrize("size_bytes", [60, 400, 3000, 30_000, 80_000])
def test_learned_estimate_is_close_and_not_below(size_bytes: int) -> None:
    prompt = text(size_bytes)
    real = truth(prompt, 0.23)
    assert real <= taught(0.23).estimate(prompt) <= real * 1.35 + 1


@pytest.mark.parametrize("size_bytes", [300, 3000, 80_000])
def test_few_prompts_are_under_estimated(size_bytes: int) -> None:
    model, rng = taught(0.25, spread=0.3, count=2000), random.Random(8)
    prompt = text(size_bytes)
    low = sum(model.estimate(prompt) < truth(prompt, 0.25 * rng.uniform(0.7, 1.3)) for _ in range(1000))
    assert 0 < low < 150


def test_short_prompts_do_not_make_long_ones_dear() -> None:
    """Thirty tokens of template around "hi" are no ratio of fifteen tokens a byte."""
    model = ModelRatios()
    for size_bytes in range(1, 200):
        model.learn((text(size_bytes),), truth(text(size_bytes), 0.25))
    long = text(100_000)
    assert model.estimate(long) <= ratios.START_RATIO[Script.LATIN] * 100_000 * 1.01


def test_long_documents_learn_apart_from_chat() -> None:
    model = ModelRatios()
    for _ in range(300):
        model.learn((text(300),), truth(text(300), 0.22))
        model.learn((text(50_000),), truth(text(50_000), 0.45))
    assert model.estimate(text(50_000)) >= truth(text(50_000), 0.45)
    assert model.estimate(text(300)) <= 1.1 * truth(text(300), 0.22)


def test_a_size_never_seen_takes_the_careful_side() -> None:
    model = ModelRatios()
    for _ in range(20):
        model.learn((text(300),), truth(text(300), 0.2))
    assert model.estimate(text(50_000)) >= 0.5 * 50_000
    for _ in range(20):
        model.learn((text(2000),), truth(text(2000), 0.8))
    assert model.estimate(text(50_000)) >= 0.75 * 50_000


def test_dense_script_has_a_ratio_of_its_own() -> None:
    model = ModelRatios()
    for _ in range(50):
        model.learn((text(3000),), truth(text(3000), 0.23))
        model.learn((text(3000, 3000),), truth(text(3000, 3000), 0.23, dense=0.45))
    latin, dense = model.estimate(text(3000)), model.estimate(text(3000, 3000))
    assert dense / latin == pytest.approx(0.45 / 0.23, rel=0.15)


def test_mixed_text_comes_out_right_in_the_end() -> None:
    """Chinese chat with English tools: what the Latin part is known to take is not blamed on the other."""
    model = ModelRatios()
    for _ in range(50):
        model.learn((text(3000),), truth(text(3000), 0.25))
    mixed = text(3000, 2000)
    for _ in range(600):
        model.learn((mixed,), truth(mixed, 0.25, dense=0.4))
    assert model.estimate(mixed) == pytest.approx(truth(mixed, 0.25, dense=0.4), rel=0.03)


def test_media_and_messages_are_added_and_not_learned_as_text() -> None:
    model = taught(0.25)
    plain = model.estimate(PromptSize(utf8_bytes=1000))
    rich = model.estimate(PromptSize(utf8_bytes=1000, media_tokens=1500, messages=3))
    assert rich == plain + 1500 + 3 * ratios.MESSAGE_TOKENS
    before = model.estimate(text(1000))
    for _ in range(ratios.SAMPLES_MAX):
        model.learn(
            (PromptSize(utf8_bytes=1000, messages=1, media_tokens=9000),), 9000 + truth(text(1000), 0.25)
        )
    assert model.estimate(text(1000)) <= before


def test_count_smaller_than_its_fixed_part_teaches_nothing() -> None:
    model = ModelRatios()
    for _ in range(20):
        model.learn((PromptSize(utf8_bytes=1000, media_tokens=500),), 400)
        model.learn((), 10)
    assert model.estimate(text(1000)) == ModelRatios().estimate(text(1000))


def test_ratio_follows_a_change_of_traffic() -> None:
    model = taught(0.5, count=2000)
    for _ in range(ratios.SAMPLES_MAX):
        model.learn((text(3000),), truth(text(3000), 0.2))
    assert model.estimate(text(3000)) < 0.25 * 3000


def test_first_of_a_script_and_of_a_size_are_counted_then_one_in_a_hundred() -> None:
    model = ModelRatios()
    assert [model.notice(text(300)) for _ in range(ratios.COUNTED_FIRST)].count(True) == 50
    assert [model.notice(text(300)) for _ in range(1000)].count(True) == 10
    # Another size of the same script, then another script.
    assert [model.notice(text(50_000)) for _ in range(90)].count(True) == ratios.SAMPLES_MIN
    assert [model.notice(text(300, 300)) for _ in range(60)].count(True) == 50


def test_models_are_bounded_and_the_oldest_goes() -> None:
    known = Ratios()
    kept = known.of("kept")
    for i in range(3 * ratios.MODELS_MAX):
        known.of(f"adapter-{i}")
        assert known.of("kept") is kept
    assert len(known) == ratios.MODELS_MAX
    assert known.of(None) is known.of(None)
    assert known.of(None) is not kept


prompts = st.builds(
    lambda size, dense, messages, media: PromptSize(
        utf8_bytes=size, dense_bytes=int(size * dense), messages=messages, media_tokens=media
    ),
    st.integers(0, 10**6),
    st.floats(0, 1),
    st.integers(0, 50),
    st.integers(0, 5000),
)


@given(st.lists(st.tuples(prompts, st.integers(0, 10**6)), max_size=40), prompts)
def test_estimate_is_sound_whatever_was_taught(
    lessons: list[tuple[PromptSize, int]], prompt: PromptSize
) -> None:
    model = ModelRatios()
    for lesson, tokens in lessons:
        model.learn((lesson,), tokens)
    estimate = model.estimate(prompt)
    assert estimate > prompt.media_tokens
    assert model.estimate(prompt) == estimate
