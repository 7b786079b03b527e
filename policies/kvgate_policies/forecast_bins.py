"""One bin of the life table of output lengths: how many of those that come to it end there, and where.

Ends are between two places that lie around their mean, as far from it as their variance says, and even on each side of
it. So a bin is described alike where lengths are smooth (the whole bin), where they are the same (one token), and in
between.
"""

from __future__ import annotations

import math
from typing import NamedTuple

DYING_MAX = 1.0 - 1e-9
"""Keeps S above 0, however long a sequence gets that should have ended."""

Counts = tuple[float, float, float, float]
"""Of one bin: trials, ends, left, squares of left."""


class Bin(NamedTuple):
    """What happens to the sequences that come to one bin."""

    dying: float
    """The part of them that ends in it."""
    first: float
    """Ends are after so many tokens of the bin …"""
    middle: float
    """… on the average after so many …"""
    last: float
    """… and never after more: at least one token further than `first`."""
    early: float
    """The part of the ends that is before the middle, evenly, as are those after it: it makes the middle the mean."""
    hazard: float
    """P(this token is the last | it is emitted) between the first and the last place; 0 outside."""


def learned(width: int, seen: Counts, parent: Bin, before: float) -> Bin:
    """One bin, `before` sequences of the parent having come to it."""
    trials, ends, left, squares = seen
    dying, first, middle, last, early, _ = parent
    more, at_risk = before * dying, before + (trials + left) / width
    trials += before * width - more * (width - 0.5 - middle)
    if ends > 0.0:
        first, middle, last = _places(width, (ends, left, squares), parent, more)
        early = (last - middle) / (last - first)
    ends += more
    if first > 0.0 or last < width:  # what was tried outside of these places ended nothing
        trials -= at_risk * first + max(at_risk - ends, 0.0) * (width - last)
    hazard = ends / max(trials, ends) if ends > 0.0 else 0.0
    return Bin(min(ends / at_risk, DYING_MAX), first, middle, last, early, hazard)


def _places(
    width: int, seen: tuple[float, float, float], parent: Bin, more: float
) -> tuple[float, float, float]:
    """First, mean and last place of the ends seen in a bin, and of `more` of its parent.

    Ends that are even over an interval reach √3 standard deviations from its middle; what would be outside of
    the bin on one side is as much further on the other. A token counts as the interval between two places.
    """
    ends, left, squares = seen
    known = width - 0.5 - parent.middle
    mean = (left + more * known) / (ends + more)
    known_square = (parent.last - parent.first) ** 2 / 12.0 + known * known
    square = (squares + ends / 12.0 + more * known_square) / (ends + more)
    reach = math.sqrt(max(3.0 * (square - mean * mean), 0.25))
    middle = min(max(width - 0.5 - mean, 0.5), width - 0.5)
    first, last = middle - reach, middle + reach
    if first < 0.0:
        return 0.0, middle, min(last - first, float(width))
    if last > width:
        return max(first - (last - width), 0.0), middle, float(width)
    return first, middle, last


def even(width: int, dying: float) -> Bin:
    """Ends are anywhere in the bin."""
    return Bin(dying, 0.0, width / 2.0, width, 0.5, dying / (width - dying * (width - 1) / 2.0))


def ended(one: Bin, upto: int) -> float:
    """The part of the sequences that came to a bin which have ended after so many tokens of it."""
    dying, first, middle, last, early, _ = one
    if upto >= last:
        return dying
    if upto >= middle:
        return dying * (early + (1.0 - early) * (upto - middle) / (last - middle))
    return dying * early * (upto - first) / (middle - first) if upto > first else 0.0


def emitted(one: Bin, upto: int) -> float:
    """Expected tokens in a bin of a sequence that comes to it and is cut after `upto` of them.

    Token j + 1 is emitted unless the sequence ended with one of the first j.
    """
    dying, first, middle, last, early, _ = one
    return upto - dying * (early * _ramp(first, middle, upto) + (1.0 - early) * _ramp(middle, last, upto))


def _ramp(low: float, high: float, upto: int) -> float:
    """The sum over j < `upto` of what rises evenly from 0 at `low` to 1 at `high`."""
    first, last = math.ceil(low), math.floor(high)
    if upto <= first:
        return 0.0
    if upto <= last:
        return (upto - first) * ((upto - 1 + first) / 2.0 - low) / (high - low)
    return (last - first + 1) * ((last + first) / 2.0 - low) / (high - low) + upto - 1 - last
