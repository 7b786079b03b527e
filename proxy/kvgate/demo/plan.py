"""The numbers of the demo: what is offered to what, and how slow the simulated engines are made.

Two engines hold exactly 12 sessions each: a session of 192 prompt tokens and 129 output tokens writes 320
slots, which is 10 blocks of 32, and an engine has 120 usable ones. Four times of what fits is offered at
once.

The demo's length sets the speed of the engines and nothing else: the same steps take place in the same
order, each takes longer. So every length shows the same preemptions, and only times scale.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate_policies.kv_cost import price
from kvgate_policies.types import EngineShape

SECONDS_MIN = 15
"""Below, the start of the processes would be most of it and a step shorter than this client can tell
apart."""
SECONDS_MAX = 3600
_STARTS_S = 8.0
"""For starting five processes in all: about a second of CPU time each, on two cores that may be busy."""
_PROFILE = "8b-80gb"
"""8 ms a step and 0.03 ms a token, assumed: about an 8 B model on a large GPU."""
_PROFILE_STEP_S = 0.0084
"""A step of that profile with 12 sessions decoding."""
_PROFILE_PHASE_S = 4.7
"""One phase at the profile's own speed by the scheduler model: 516 steps direct, 517 with 12 at a time."""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What the demo does."""

    slowdown: float
    """How many times slower than their profile the simulated engines run."""
    engines: int = 2
    blocks: int = 121
    """As vLLM counts them: one is the null block."""
    block_size: int = 32
    max_model_len: int = 2048
    max_num_seqs: int = 256
    prompt_tokens: int = 192
    output_tokens: int = 129
    overload: int = 4
    """How many times of what fits is offered."""
    model: str = "demo"
    seed: int = 12

    @property
    def blocks_per_session(self) -> int:
        shape = EngineShape(self.block_size, self.max_model_len)
        return price(shape, [self.prompt_tokens], self.output_tokens, 1).blocks

    @property
    def fits_per_engine(self) -> int:
        return (self.blocks - 1) // self.blocks_per_session

    @property
    def most_per_engine(self) -> int:
        """Sessions at once, at the most, of which none will lack a block: some of full size that are about to end,
        beside some that have begun, no more than fit at full size.
        """
        usable, begun = self.blocks - 1, self._blocks_of_one_begun
        return max(
            some + (usable - some * begun) // self.blocks_per_session
            for some in range(self.fits_per_engine + 1)
        )

    @property
    def _blocks_of_one_begun(self) -> int:
        shape = EngineShape(self.block_size, self.max_model_len)
        return price(shape, [self.prompt_tokens], 1, 1).blocks

    @property
    def offered(self) -> int:
        return self.engines * self.fits_per_engine * self.overload

    @property
    def profile(self) -> str:
        """The profile as `kvgate sim-engine --profile` takes it: a name, and how many times slower."""
        return f"{_PROFILE}:{self.slowdown:.3f}"

    @property
    def step_s(self) -> float:
        """A usual engine step: the time from one token of a stream to its next."""
        return _PROFILE_STEP_S * self.slowdown


def plan_for(seconds: int) -> DemoPlan:
    """The plan that takes about `seconds` in all. Raises ValueError outside of 15 s to an hour."""
    if not SECONDS_MIN <= seconds <= SECONDS_MAX:
        msg = f"the demo can take {SECONDS_MIN} to {SECONDS_MAX} seconds, not {seconds}"
        raise ValueError(msg)
    phase_s = (seconds - _STARTS_S) / 2
    return DemoPlan(slowdown=phase_s / _PROFILE_PHASE_S)
