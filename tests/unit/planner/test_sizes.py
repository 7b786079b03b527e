"""Sizes keep their unit, and a number without one is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvgate.planner.sizes import binary, in_unit, plain, read_size


@pytest.mark.parametrize(
    ("text", "size_bytes", "shown"),
    [
        ("80GiB", 80 * 1024**3, "80 GiB"),
        ("80GB", 80 * 1000**3, "80 GB"),
        ("80 gib", 80 * 1024**3, "80 GiB"),
        ("1.5TiB", 3 * 1024**4 // 2, "1.5 TiB"),
        ("512MB", 512 * 1000**2, "512 MB"),
        ("4096KiB", 4096 * 1024, "4,096 KiB"),
        ("33554431B", 33554431, "33,554,431 B"),
        ("0.1GB", 10**8, "0.1 GB"),
    ],
)
def test_sizes(text: str, size_bytes: int, shown: str) -> None:
    size = read_size(text)
    assert size.bytes == size_bytes
    assert str(size) == shown


@pytest.mark.parametrize(
    "text", ["80", "80G", "80Gb/s", "-80GiB", "GiB", "", "80 GiB or so", "1e3GB", "٨GiB"]
)
def test_what_is_no_size_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(ValueError, match="a size with its unit, such as 80GiB"):
        read_size(text)


def test_the_other_reading() -> None:
    assert str(read_size("80GiB").other_reading) == "80 GB"
    assert str(read_size("80GB").other_reading) == "80 GiB"
    assert read_size("80B").other_reading == read_size("80B")


def test_sizes_for_people() -> None:
    assert binary(524_288) == "512 KiB"
    assert binary(4 * 1024**3) == "4 GiB"
    assert binary(48 * 1000**3) == "44.7 GiB"
    assert binary(656) == "656 B"
    assert in_unit(48 * 1000**3, "GB") == "48 GB"
    assert plain(Fraction(1, 3)) == "0.333"
