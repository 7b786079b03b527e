from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.sim import output, tokenizer


@given(st.text())
def test_tokens_turn_back_into_the_text(text):
    whole = text.encode("utf-8", "replace").decode()
    assert tokenizer.decode(tokenizer.encode(text)) == whole


@given(st.text(max_size=200))
def test_a_token_is_four_bytes(text):
    size = len(text.encode("utf-8", "replace"))
    assert len(tokenizer.encode(text)) == -(-size // 4)


@given(st.binary(min_size=1, max_size=4))
def test_every_token_stands_for_its_own_bytes(data):
    (token,) = [
        candidate
        for candidate in (tokenizer._OFFSETS[len(data) - 1] + int.from_bytes(data),)
        if tokenizer.token_bytes(candidate) == data
    ]
    assert len(tokenizer.SPECIALS) <= token < tokenizer.VOCABULARY


def test_texts_with_a_common_beginning_share_their_first_tokens():
    shared = "You are a careful assistant. "
    first, second = (tokenizer.encode(shared + rest) for rest in ("Hello?", "Goodbye!"))
    common = len(shared) // 4
    assert first[:common] == second[:common]
    assert first != second


def test_a_chat_costs_two_tokens_a_message_one_to_begin_and_one_to_answer():
    text = "hello the proxy"
    tokens = tokenizer.apply_chat_template([("user", text)])
    assert len(tokens) == 4 + len(tokenizer.encode(text))
    assert tokens[:2] == (tokenizer.BOS, tokenizer.USER)
    assert tokens[-2:] == (tokenizer.END, tokenizer.ASSISTANT)
    without = tokenizer.apply_chat_template([("user", text)], add_generation_prompt=False)
    assert without == tokens[:-1]


@pytest.mark.parametrize("token", [-1, tokenizer.VOCABULARY])
def test_ids_outside_the_vocabulary_are_refused(token):
    with pytest.raises(ValueError, match="outside the vocabulary"):
        tokenizer.token_bytes(token)


@given(st.integers(0, 2**64 - 1), st.integers(0, 300), st.integers(0, 300))
def test_output_text_has_one_token_for_each_token_generated(mark, start, count):
    text = output.words(mark, start, start + count)
    assert len(tokenizer.encode(text)) == count


def test_output_text_does_not_depend_on_how_it_is_cut():
    mark = output.fingerprint((1, 2, 3), seed=0)
    whole = output.words(mark, 0, 50)
    assert whole == "".join(output.words(mark, k, k + 1) for k in range(50))


def test_natural_lengths_are_repeatable_and_lie_around_their_median():
    lengths = [output.natural_length(output.fingerprint((k,), seed=0)) for k in range(2000)]
    assert lengths == [output.natural_length(output.fingerprint((k,), seed=0)) for k in range(2000)]
    assert min(lengths) >= 1
    below = sum(length <= output.LENGTH_MEDIAN for length in lengths)
    assert 0.45 < below / len(lengths) < 0.55
    assert 150 < sum(lengths) / len(lengths) < 205


def test_another_seed_gives_other_lengths():
    drawn = [[output.natural_length(output.fingerprint((k,), seed)) for k in range(20)] for seed in (0, 1)]
    assert drawn[0] != drawn[1]


def test_siblings_say_different_things():
    mark = output.fingerprint((1, 2, 3), seed=0)
    texts = {output.words(output.sibling(mark, k), 0, 8) for k in range(8)}
    assert len(texts) == 8
