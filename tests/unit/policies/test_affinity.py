from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate_policies.affinity import DEPTHS_BYTES, ENGINES_MAX, ENTRIES_MAX, Affinity, prefixes

SALT = b"salt"


@pytest.mark.parametrize(
    ("size", "depths"),
    [(0, 0), (255, 0), (256, 1), (1023, 1), (1024, 2), (65_535, 4), (65_536, 5), (10**6, 5)],
)
def test_as_many_hashes_as_depths_are_reached(size: int, depths: int) -> None:
    assert len(prefixes(SALT, [b"x" * size])) == depths


def test_what_grows_keeps_the_hashes_of_its_beginning() -> None:
    text = bytes(range(256)) * 20
    short, long = prefixes(SALT, [b"model", text[:1100]]), prefixes(SALT, [b"model", text])
    assert long[-2:] == short
    assert len(long) == 3


@given(st.integers(0, 5000), st.integers(1, 5000))
def test_two_texts_share_the_hashes_of_what_they_share(common: int, rest: int) -> None:
    one, other = (prefixes(SALT, [b"=" * common + letter * rest]) for letter in (b"a", b"b"))
    shared = sum(depth <= common for depth in DEPTHS_BYTES)
    assert set(one) & set(other) == set(one[len(one) - shared :])


def test_parts_are_told_apart_and_so_are_salts() -> None:
    text = b"t" * 300
    found = [
        prefixes(SALT, [b"a", text]),
        prefixes(SALT, [b"", b"a" + text]),
        prefixes(SALT, [b"a", b"", text]),
        prefixes(SALT, [b"b", text]),
        prefixes(b"other", [b"a", text]),
    ]
    assert len({hashes[-1] for hashes in found}) == len(found)


def test_hashes_have_64_bits() -> None:
    hashes = [one for letter in range(256) for one in prefixes(SALT, [bytes([letter]) * 1024])]
    assert 2**60 < max(hashes) < 2**64


def test_the_deepest_beginning_that_is_known_comes_first() -> None:
    affinity = Affinity()
    affinity.learn((2, 1), "a")
    affinity.learn((3, 1), "b")
    assert affinity.prefer((9, 2, 1)) == ("a", "b")
    assert affinity.prefer((3, 1)) == ("b", "a")
    assert affinity.prefer((1,)) == ("b", "a")
    assert affinity.prefer((9,)) == affinity.prefer(()) == ()


def test_of_one_beginning_the_latest_engines_are_known() -> None:
    affinity = Affinity()
    for engine in "abcdeb":
        affinity.learn((1,), engine)
    assert affinity.prefer((1,)) == ("b", "e", "d", "c")
    assert len(affinity.prefer((1,))) == ENGINES_MAX


def test_what_is_longest_unused_is_forgotten() -> None:
    affinity = Affinity(entries_max=3)
    for one in (1, 2, 3):
        affinity.learn((one,), "a")
    affinity.prefer((1,))
    affinity.learn((4,), "a")
    assert [one for one in (1, 2, 3, 4) if affinity.prefer((one,))] == [1, 3, 4]


def test_it_is_bounded() -> None:
    affinity = Affinity()
    for one in range(ENTRIES_MAX + 5):
        affinity.learn((one,), "a")
    assert len(affinity) == ENTRIES_MAX
