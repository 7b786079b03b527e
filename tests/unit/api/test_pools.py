"""Which pool a model name means, what the engines are asked by, and the one list of models."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvgate.api.model_name import body_with_model, model_of, request_with_model
from kvgate.api.parse import BadRequest, parse
from kvgate.api.pools import PoolLine, Pools
from kvgate.config.settings import PoolSpec
from kvgate_policies.types import Endpoint

FORM = "multipart/form-data; boundary=x"


class Served:
    """Of an engine pool, the names that its engines serve; the first is the base model."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def knows(self, model: str) -> bool:
        return model in self.names

    def base_name(self) -> str | None:
        return next(iter(self.names), None)

    def model_names(self) -> tuple[str, ...]:
        return self.names

    def models(self) -> list[dict[str, Any]]:
        return [
            {"id": n, "owned_by": "vllm", "parent": None if n == self.names[0] else self.names[0]}
            for n in self.names
        ]


def line(name: str, *served: str, aliases: tuple[str, ...] = ()) -> PoolLine:
    nothing: Any = None
    engines: Any = Served(*served)
    spec = PoolSpec(name=name, aliases=aliases, backends=("http://x",))
    return PoolLine(spec, nothing, nothing, nothing, engines, nothing, nothing)


def pools(*lines: PoolLine) -> Pools:
    nothing: Any = None
    return Pools(lines, nothing)


TWO = pools(
    line("small", "tiny", "tiny-sql", aliases=("quick", "gpt-*")),
    line("large", "huge", "gpt-oss", "quick", aliases=("thorough", "*-long")),
)


@pytest.mark.parametrize(
    ("model", "pool", "served"),
    [
        ("small", "small", "tiny"),
        ("quick", "small", "tiny"),  # the operator's word before an adapter of that name
        ("tiny-sql", "small", None),
        ("gpt-oss", "large", None),  # an exact name before a pattern
        ("gpt-4o", "small", "tiny"),
        ("gpt-long", "small", "tiny"),  # the first pool of the file
        ("any-long", "large", "huge"),
        ("thorough", "large", "huge"),
        ("huge", "large", None),
    ],
)
def test_each_name_has_its_pool(model: str, pool: str, served: str | None) -> None:
    found = TWO.of_model(model)
    assert found is not None
    assert (found.name, found.served_name(model)) == (pool, served)


@pytest.mark.parametrize("model", [None, "", "Small", "gpt", "tiny-"])
def test_names_of_no_pool(model: str | None) -> None:
    assert TWO.of_model(model) is None


def test_a_single_pool_takes_everything_and_rewrites_only_with_aliases() -> None:
    alone = pools(line("small", "tiny"))
    named = pools(line("small", "tiny", aliases=("quick",)))
    for model in ("small", "quick", "other", None):
        assert alone.of_model(model) is alone.lines[0]
        assert alone.lines[0].served_name(model) is None
        assert named.of_model(model) is named.lines[0]
    assert [named.lines[0].served_name(m) for m in ("small", "quick", "other", "tiny", None)] == [
        "tiny", "tiny", None, None, None,
    ]  # fmt: skip
    assert [card["id"] for card in alone.models()] == ["tiny"]


def test_before_an_engine_told_its_names_nothing_is_rewritten() -> None:
    unknown = pools(line("small"), line("large"))
    found = unknown.of_model("small")
    assert found is not None
    assert found.served_name("small") is None
    assert unknown.models() == []


def test_one_list_of_models_each_once() -> None:
    cards = {card["id"]: card for card in TWO.models()}
    assert list(cards) == ["tiny", "tiny-sql", "huge", "gpt-oss", "quick", "small", "large", "thorough"]
    assert cards["thorough"] == {"id": "thorough", "owned_by": "vllm", "parent": None, "root": "huge"}
    assert cards["tiny-sql"]["parent"] == "tiny"
    assert "root" not in cards["quick"]  # an engine prints that one itself


def test_names_in_two_pools() -> None:
    assert TWO.twice() == {"quick": ("small", "large")}
    assert pools(line("a", "x"), line("b", "x", "y")).twice() == {"x": ("a", "b")}


def test_aliases_change_and_pools_do_not() -> None:
    some = pools(line("small", "tiny", aliases=("quick",)), line("large", "huge"))
    some.rename(
        [
            PoolSpec(name="small", aliases=("fresh",), backends=("http://x",)),
            PoolSpec(name="new", backends=("http://y",)),
        ]
    )
    assert some.names == ("small", "large")
    assert some.of_model("quick") is None
    assert some.of_model("fresh") is some.lines[0]


def form(**fields: str) -> bytes:
    parts = (f'--x\r\ncontent-disposition: form-data; name="{n}"\r\n\r\n{v}\r\n' for n, v in fields.items())
    return "".join(parts).encode() + b"--x--\r\n"


def test_the_model_of_a_body() -> None:
    assert model_of(b'{"model": "m", "prompt": [1]}') == "m"
    assert model_of(form(model="m", file="abc"), FORM) == "m"
    for body in (b"{}", b'{"model": 7}', b"[1]", b"{", b"", b'{"model": null}'):
        assert model_of(body) is None


def test_another_model_is_written_and_nothing_else_changes() -> None:
    body = b'{"n": 1e2, "model": "alias", "text": "\\u00e9"}'
    assert (
        body_with_model(body, "application/json", "served") == b'{"n":1e2,"model":"served","text":"\\u00e9"}'
    )
    changed = body_with_model(form(model="alias", file="abc", prompt="alias"), FORM, "served")
    assert changed == form(model="served", file="abc", prompt="alias")
    for bad, kind in ((b"[1]", ""), (form(file="abc"), FORM)):
        with pytest.raises(ValueError, match=r"no JSON object|no field"):
            body_with_model(bad, kind, "served")


def test_prompts_are_counted_under_the_new_name_too() -> None:
    body = {"model": "alias", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    request = parse(Endpoint.CHAT, json.dumps(body).encode())
    assert not isinstance(request, BadRequest)
    changed = request_with_model(request, "served")
    assert changed.model == "served"
    assert [counted["model"] for counted in changed.tokenize] == ["served"]
