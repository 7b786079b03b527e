"""Memory sizes with their unit, as people write them: `80GiB`, `80GB`. Pure, exact, and never without a unit.

GB and GiB differ by 7 % at this size, which is one session in twelve; a bare number or `80G` could be either,
so it is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_UNITS: dict[str, int] = {
    "B": 1,
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGT", 1)},
}
_BY_LOWER = {unit.lower(): unit for unit in _UNITS}
_OTHER = {
    "KiB": "kB", "MiB": "MB", "GiB": "GB", "TiB": "TB", "kB": "KiB", "MB": "MiB", "GB": "GiB", "TB": "TiB",
}  # fmt: skip
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)

ALLOWED = "a size with its unit, such as 80GiB (1024³ bytes each) or 80GB (1000³ bytes each)"
BYTES_MAX = 1024**5
"""A thousand times what the largest rack of GPUs has."""
_CHARACTERS_MAX = 40


@dataclass(frozen=True, slots=True)
class Size:
    """A size as it was written."""

    number: Fraction
    unit: str

    @property
    def bytes(self) -> Fraction:
        return self.number * Fraction(_UNITS[self.unit])

    @property
    def other_reading(self) -> Size:
        """The same number in the unit it is easily taken for: GB for GiB, and the other way round."""
        return Size(self.number, _OTHER.get(self.unit, self.unit))

    def __str__(self) -> str:
        return f"{plain(self.number)} {self.unit}"


def read_size(text: str) -> Size:
    """Raises ValueError with what is allowed."""
    match = _SIZE.fullmatch(text.strip()) if len(text) <= _CHARACTERS_MAX else None
    unit = _BY_LOWER.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(ALLOWED)
    size = Size(Fraction(match[1]), unit)
    if size.bytes > BYTES_MAX:
        raise ValueError(f"{ALLOWED}, at most 1024TiB")
    return size


def read_share(text: str) -> Fraction | None:
    """A number above 0 and at most 1, exactly as written; None for what is none."""
    try:
        if 0 < float(text) <= 1:  # first, as an exponent of a million has no exact number
            return Fraction(text)
    except ValueError:
        pass
    return None


def in_unit(size_bytes: Fraction | int, unit: str) -> str:
    """`44.7 GiB`: three digits at least, all of them where the number is whole."""
    return f"{plain(Fraction(size_bytes) / _UNITS[unit])} {unit}"


def binary(size_bytes: Fraction | int) -> str:
    """In the largest of B, KiB, MiB, GiB, TiB that leaves at least 1."""
    fitting = [unit for unit in ("TiB", "GiB", "MiB", "KiB") if size_bytes >= _UNITS[unit]]
    return in_unit(size_bytes, fitting[0] if fitting else "B")


def plain(number: Fraction) -> str:
    """A number for reading: whole ones exactly, others to about three digits."""
    if number.denominator == 1:
        return f"{int(number):,}"
    return f"{float(number):,.1f}" if abs(number) >= 10 else f"{float(number):.3g}"
