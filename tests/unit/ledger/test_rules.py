"""The rules of tenants as they go to Redis."""

from __future__ import annotations

import pytest

from kvgate.ledger.rules import PART_MAX, Parts
from kvgate_policies.types import TenantRules


def test_the_digest_tells_whether_there_is_anything_to_say():
    rules = {"a": TenantRules(weight=4), "b": TenantRules(guarantee=0.3)}
    same = Parts.of(dict(reversed(rules.items())))
    assert same == Parts.of(rules)
    for other in ({"a": rules["a"]}, rules | {"b": TenantRules(guarantee=0.31)}, {}):
        assert Parts.of(other).digest != same.digest


def test_many_go_in_parts_of_bounded_size():
    parts = Parts.of({f"t{number}": TenantRules() for number in range(2 * PART_MAX + 1)})
    words = [len(row) // 8 for row in parts.rows]
    assert words == [PART_MAX, PART_MAX, 1]


def test_nobody_is_a_part_too():
    assert Parts.of({}).rows == ((),)


def test_numbers_read_as_the_same_doubles():
    (row,) = Parts.of({"t": TenantRules(weight=0.1 + 0.2, guarantee=1 / 3)}).rows
    assert [float(word) for word in row[1:3]] == [0.1 + 0.2, 1 / 3]


@pytest.mark.parametrize("name", ["", "a\x01b", "a\nb"])
def test_a_name_that_would_break_a_key_is_refused(name):
    with pytest.raises(ValueError, match="printable"):
        Parts.of({name: TenantRules()})
