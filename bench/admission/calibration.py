"""Does the forecast say how likely a length is? Its quantiles against lengths that come after it."""

from __future__ import annotations

import random

from bench.admission.workload import PROFILES

from kvgate_policies.forecast import Lengths

QUANTILES = (0.5, 0.9, 0.99)
REQUESTS = 5000
LEARNED_FIRST = 500
RUNNING = 60
"""Sequences that run side by side."""


def calibration(name: str, seed: int, *, tenant: int = 0, requests: int = REQUESTS) -> tuple[float, ...]:
    """The part of `requests` requests that got longer than each quantile forecast when they started.

    Sequences run side by side and are told of as they go, so that short ones finish first, as on an engine.
    """
    size = PROFILES[name].tenants[tenant].output
    rng = random.Random(f"{seed}/{name}/calibration")
    lengths = Lengths()
    running: list[tuple[int, int, int]] = []
    """Cohort, length, emitted."""
    started, longer = 0, [0] * len(QUANTILES)
    while started < LEARNED_FIRST + requests:
        while len(running) < RUNNING:
            length = size.draw(rng)
            if started >= LEARNED_FIRST:
                curve = lengths.curve("a")
                longer = [
                    count + (length > curve.quantile(q)) for count, q in zip(longer, QUANTILES, strict=True)
                ]
            running.append((lengths.start("a"), length, 0))
            started += 1
        running = [left for one in running if (left := _advance(lengths, *one)) is not None]
        lengths.review()
    return tuple(count / (started - LEARNED_FIRST) for count in longer)


def _advance(lengths: Lengths, cohort: int, length: int, emitted: int) -> tuple[int, int, int] | None:
    """A heartbeat further: ten tokens, or to the end."""
    after = min(emitted + 10, length)
    lengths.reach("a", cohort, emitted, after)
    if after < length:
        return cohort, length, after
    lengths.end("a", cohort, length)
    return None
