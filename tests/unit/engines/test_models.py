from __future__ import annotations

import json

import pytest

from kvgate.engines.models import Card, merged, read_models, strangers, window
from support.upstream import EngineFace


def cards(**given) -> tuple[Card, ...]:
    return read_models(json.dumps(EngineFace(**given).models()).encode())


def test_cards_of_a_base_model_and_its_adapters() -> None:
    found = cards(model="base", adapters=("lora-a", "lora-b"), max_model_len=512)
    assert [card.id for card in found] == ["base", "lora-a", "lora-b"]
    assert window(found) == 512
    assert found[1].raw["parent"] == "base"


def test_a_window_that_is_not_told() -> None:
    assert window(cards(max_model_len=None)) is None
    assert window(()) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"data": 3}',
        b'{"data": [{}]}',
        b'{"data": ["x"]}',
        b'{"data": [{"id": 3}]}',
        b"\xff",
    ],
)
def test_anything_else_is_an_error_in_words(body) -> None:
    with pytest.raises(ValueError, match="/v1/models is not a list of models"):
        read_models(body)


def test_merging_keeps_the_first_card_of_a_name() -> None:
    one, two = cards(model="m", max_model_len=10), cards(model="m", adapters=("l",), max_model_len=20)
    assert [(card.id, card.max_model_len) for card in merged([one, two])] == [("m", 10), ("l", 20)]


def test_who_serves_nothing_of_the_pool_is_a_stranger() -> None:
    served = {"a": frozenset({"m", "l"}), "b": frozenset({"l"}), "c": frozenset({"x"}), "d": frozenset[str]()}
    found = strangers(served)
    assert set(found) == {"c", "d"}
    assert found["c"] == "serves x, the pool serves l, m: give it a pool of its own"
    assert found["d"].startswith("lists no model at /v1/models")


M, X, NONE = frozenset({"m"}), frozenset({"x"}), frozenset[str]()


@pytest.mark.parametrize(
    ("served", "strange"),
    [
        ((M, X), {1}),  # of equally many the senior one
        ((X, M, M), {0}),
        ((NONE, M), {0}),
        ((NONE, NONE), {0, 1}),
        ((X, frozenset({"m", "l"}), frozenset({"l"}), frozenset({"m"})), {0}),
    ],
)
def test_the_pool_serves_what_most_of_it_does(served, strange) -> None:
    assert set(strangers({str(n): names for n, names in enumerate(served)})) == set(map(str, strange))


def test_a_window_is_a_number() -> None:
    (card,) = read_models(b'{"data": [{"id": "m", "max_model_len": true}]}')
    assert card.max_model_len is None


def test_a_pool_of_none_has_no_strangers() -> None:
    assert strangers({}) == {}
