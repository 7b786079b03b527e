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
    "body", [b"", b"[]", b"{}", b'{"data": 3}', b'{"data": [{}]}', b'{"data": ["x"]}', b"\xff"]
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
    assert "serves no model" in found["d"]


def test_a_pool_of_none_has_no_strangers() -> None:
    assert strangers({}) == {}
