"""Durations, percentages and counts in the units people write: `30s`, `15m`, `30%`, `200k`.

Pure. A function returns the number in base units or raises ValueError with what is allowed; nothing is
guessed (a bare number where a unit matters is refused, not taken for seconds).
"""

from __future__ import annotations

import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MULTIPLES = {"": 1, "k": 1000, "M": 1_000_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kM]?)", re.ASCII)
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%", re.ASCII)

DURATION_ALLOWED = "a duration above 0 with its unit, such as 500ms, 30s, 15m or 1h"
COUNT_ALLOWED = "a whole number, such as 200, 20k or 1.5M"
COUNT_MAX = 10**12
"""More than anything here has, and far from where the numbers of a shared ledger stop being exact."""
COUNT_MAX_ALLOWED = "a whole number of at most 1000000M"
DURATION_S_MAX = 1e9
"""Thirty years: what is longer can't be told from for ever, and times far ahead are no times any more."""
DURATION_MAX_ALLOWED = "a duration of at most 30 years"
SHARE_ALLOWED = "a percentage from 0% to below 100%, such as 2%, or a number such as 0.02"
SHARE_WHOLE_ALLOWED = "a percentage from 0% to 100%, such as 30%, or a number such as 0.3"


def duration_s(value: object) -> float:
    """Seconds of `30s` and the like."""
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if seconds <= 0:
        raise ValueError(DURATION_ALLOWED)
    if seconds > DURATION_S_MAX:
        raise ValueError(DURATION_MAX_ALLOWED)
    return seconds


def count(value: object) -> int:
    """A whole number; `k` is a thousand, `M` a million."""
    number: float = 0.5
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and (match := _COUNT.fullmatch(value.strip())):
        number = round(float(match[1]) * _MULTIPLES[match[2]], 6)
    if number > COUNT_MAX:
        raise ValueError(COUNT_MAX_ALLOWED)
    if number < 0 or number != int(number):
        raise ValueError(COUNT_ALLOWED)
    return int(number)


def share(value: object) -> float:
    """A part of 1, from `2%` or `0.02`."""
    number = _part(value)
    if number is None or not 0 <= number < 1:
        raise ValueError(SHARE_ALLOWED)
    return number


def share_whole(value: object) -> float:
    """A part of 1, or all of it, from `30%`, `100%` or `0.3`."""
    number = _part(value)
    if number is None or not 0 <= number <= 1:
        raise ValueError(SHARE_WHOLE_ALLOWED)
    return number


def _part(value: object) -> float | None:
    if isinstance(value, str) and (match := _PERCENT.fullmatch(value.strip())):
        return float(match[1]) / 100
    try:
        return float("" if isinstance(value, bool) else str(value))
    except ValueError:
        return None
