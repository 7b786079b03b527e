"""One field changes; all else keeps its bytes and its meaning."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.api.rewrite import with_max_tokens, with_priority

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)
FIELDS = st.sampled_from(["max_tokens", "max_completion_tokens", "max_output_tokens"])
OBJECTS = st.dictionaries(FIELDS | st.text(max_size=8), VALUES, max_size=6)


@given(OBJECTS, FIELDS, st.integers(1, 10**6), st.booleans())
def test_only_the_field_changes(body: dict[str, Any], field: str, value: int, ascii_only: bool):
    new = with_max_tokens(json.dumps(body, ensure_ascii=ascii_only).encode(), field, value)
    assert json.loads(new) == body | {field: value}


@given(OBJECTS, OBJECTS, st.integers(1, 10**6))
def test_only_the_nested_field_changes(body: dict[str, Any], params: dict[str, Any], value: int):
    body["sampling_params"] = params
    new = with_max_tokens(json.dumps(body).encode(), "sampling_params.max_tokens", value)
    assert json.loads(new) == body | {"sampling_params": params | {"max_tokens": value}}


@given(OBJECTS, st.integers(-10, 10))
def test_of_a_priority_too(body: dict[str, Any], value: int):
    assert json.loads(with_priority(json.dumps(body).encode(), value)) == body | {"priority": value}


def test_other_values_keep_their_bytes():
    body = b'{ "t" : 1.50e+1, "max_tokens":9 , "s":"\\u00e9\\/", "n": 12345678901234567890123, "l": [1 , 2]}'
    new = with_max_tokens(body, "max_tokens", 5)
    for kept in (b"1.50e+1", b'"\\u00e9\\/"', b"12345678901234567890123", b"[1 , 2]"):
        assert kept in new
    assert json.loads(new)["max_tokens"] == 5


@pytest.mark.parametrize(
    "body",
    [
        b'{"max_tokens": 1, "max_tokens": 9000}',
        b'{"max_tok\\u0065ns": 9000, "max_tokens": 1, "max_tok\\u0065ns": 8}',
    ],
)
def test_no_equal_key_survives_to_overrule_it(body: bytes):
    new = with_max_tokens(body, "max_tokens", 5)
    pairs = json.loads(new, object_pairs_hook=tuple)
    assert pairs == (("max_tokens", 5),)


def test_an_empty_object_gets_the_field():
    assert with_max_tokens(b"{}", "max_completion_tokens", 5) == b'{"max_completion_tokens":5}'


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"[]", "max_tokens"),
        (b"{", "max_tokens"),
        (b"{}", "sampling_params.max_tokens"),
        (b'{"sampling_params": 3}', "sampling_params.max_tokens"),
    ],
)
def test_where_there_is_nowhere_to_write_it_raises(body: bytes, field: str):
    with pytest.raises(ValueError, match="no JSON object"):
        with_max_tokens(body, field, 5)
