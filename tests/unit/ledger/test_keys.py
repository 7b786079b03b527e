from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.ledger.keys import shape_key, shape_of
from kvgate_policies.kv_groups import KVGroup
from kvgate_policies.model_shape import Kind
from kvgate_policies.types import EngineShape

counts = st.integers(0, 10**6)
groups = st.builds(
    KVGroup,
    kind=st.sampled_from(Kind),
    block_size=counts,
    window=counts,
    count=st.integers(1, 9),
    checkpoints=st.integers(0, 1),
)
shapes = st.builds(
    EngineShape,
    block_size=counts,
    max_model_len=counts,
    prefix_caching=st.booleans(),
    speculative_tokens=counts,
    blocks_opaque=st.none() | counts,
    groups=st.lists(groups, max_size=3).map(tuple),
    in_flight_tokens=counts,
)


@given(shapes, shapes)
def test_a_shape_comes_back_from_its_key_and_no_two_share_one(one: EngineShape, other: EngineShape) -> None:
    assert shape_of(shape_key(one)) == one
    assert (shape_key(one) == shape_key(other)) == (one == other)


def test_the_key_of_a_plain_shape_is_short() -> None:
    assert shape_key(EngineShape(16, 4096, True, 3)) == "16/4096/1/3/-"


@pytest.mark.parametrize(
    "key", ["", "16/4096/1/3", "16/4096/1/3/-/0/FULL:1:2:3", "16/4096/1/3/-/0/HALF:1:2:3:4", "a/b/c/d/-"]
)
def test_other_text_is_refused(key: str) -> None:
    with pytest.raises(ValueError):
        shape_of(key)
