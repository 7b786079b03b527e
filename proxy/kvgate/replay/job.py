"""One request on its way through a replay."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvgate.admission.contract import Call
    from kvgate.admission.pricing import Priced
    from kvgate.forecasting import Running
    from kvgate.replay.engine_base import Sequence
    from kvgate.replay.foreseeing import Held
    from kvgate.replay.offered import Offered


class State(Enum):
    QUEUED = auto()
    RUNNING = auto()
    DRAINING = auto()
    """It has left, and its reservation is kept for a moment, as its engine may still compute."""
    ENDED = auto()


@dataclass(slots=True, eq=False)
class Job:
    request_id: str
    offered: Offered
    call: Call
    priced: Priced
    state: State = State.QUEUED
    held: Held | None = None
    """What it holds, from its grant on."""
    run: Running | None = None
    """What forecasts know of it."""
    granted_s: float = 0.0
    first_token_s: float | None = None
    engine: str = ""
    sequences: list[Sequence] = field(default_factory=list["Sequence"])
    unfinished: int = 0
    """Sequences that have not ended."""

    @property
    def generated(self) -> int:
        """Tokens of all its sequences, as far as its engine has told."""
        return sum(sequence.generated for sequence in self.sequences)
