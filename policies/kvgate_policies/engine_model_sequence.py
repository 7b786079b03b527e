"""What the engine model keeps of one sequence, and the plan of one step while it is being decided."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvgate_policies.engine_model_types import SimRequest


@dataclass(slots=True, eq=False)
class Sequence:
    """The scheduler's view of a request. `known = prompt + generated`; `computed < known` while it lives."""

    request: SimRequest
    arrival: int
    known: int
    computed: int = 0
    computed_max: int = 0
    """The most it ever had computed: below it, work is done again."""
    generated: int = 0
    admitted_before: bool = False
    blocks: list[int] = field(default_factory=list[int])
    labelled: int = 0
    """How many of `blocks`, from the front, can be found in the prefix cache."""
    _keys: list[Hashable] = field(default_factory=list[Hashable])

    @property
    def uncomputed(self) -> int:
        return self.known - self.computed

    @property
    def rank(self) -> tuple[int, int]:
        """Place under the priority policy: the smaller, the sooner."""
        return (self.request.priority, self.arrival)

    def key(self, index: int, block_size: int) -> Hashable:
        """What names the content of a full block, all that precedes it included."""
        while len(self._keys) <= index:
            self._keys.append(self._make_key(len(self._keys), block_size))
        return self._keys[index]

    def _make_key(self, index: int, block_size: int) -> Hashable:
        request = self.request
        end = (index + 1) * block_size
        if request.token_ids is not None and end <= request.prompt_tokens:
            before = self._keys[index - 1] if index else 0
            # The hash of integers is the same in every process; at 61 bits a false hit is a matter of theory.
            return hash((before, request.token_ids[end - block_size : end]))
        if request.prefix_key is not None and end <= request.prefix_tokens:
            return (request.prefix_key, index)
        return ("own", self.arrival, index)


@dataclass(slots=True)
class Plan:
    """What one step is going to do."""

    budget: int
    """Tokens that may still be scheduled."""
    scheduled: dict[Sequence, int] = field(default_factory=dict[Sequence, int])
    """Tokens to compute, in scheduling order."""
    preempted: list[Sequence] = field(default_factory=list[Sequence])
    admitted: list[Sequence] = field(default_factory=list[Sequence])
    next_running: int = 0

    def schedule(self, sequence: Sequence, tokens: int) -> None:
        self.scheduled[sequence] = tokens
        self.budget -= tokens
