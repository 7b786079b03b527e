"""What vLLM measures and the engine model does not: the times, and how requests ended.

Histograms have vLLM's own buckets, so that dashboards and proxies read the simulator as they read vLLM.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

ITERATION_TOKENS = (1.0, *(float(2**power) for power in range(3, 15)))
TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


TOKENS = tuple(float(digit * 10**power) for power in range(7) for digit in (1, 2, 5))
"""vLLM's buckets go up to its window; the simulator's are the same for every window."""


class Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@dataclass
class SimStats:
    """Since the last restart. Times are seconds."""

    started_at: float
    """Unix time: how a proxy notices a restart."""
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_S))
    itl: Histogram = field(default_factory=lambda: Histogram(ITL_S))
    e2e: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    queue: Histogram = field(default_factory=lambda: Histogram(REQUEST_S))
    iteration_tokens: Histogram = field(default_factory=lambda: Histogram(ITERATION_TOKENS))
    prompt_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    generation_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    max_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    """By the limit that was in force, of sequences that ended, as the two above."""
    ended: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
    )
    """By finish reason. A client that leaves is not counted, as in vLLM."""
    rejections: int = 0
    """Requests refused because of `max_num_queued_reqs`."""
    running_max: int = 0
    """The most sequences that ran in one step."""

    def ended_with(self, prompt_tokens: int, tokens: int, max_tokens: int) -> None:
        """Count the lengths of a sequence that ended by itself."""
        self.prompt_tokens.observe(prompt_tokens)
        self.generation_tokens.observe(tokens)
        self.max_tokens.observe(max_tokens)
