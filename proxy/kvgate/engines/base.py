"""What admission needs to know of a pool's engines and how it reports back what it saw of them.

An *engine* is one vLLM scheduler: a backend URL, or one data-parallel rank behind it. Its id is the URL, with
`#rank` added when the URL has several.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from kvgate_policies.types import EngineShape


class Trouble(StrEnum):
    """What a request saw of its engine."""

    CONNECT = "connect"
    """Could not connect: out of the pool until a probe answers."""
    BUSY = "busy"
    """vLLM's own "currently busy" 503: full for a moment, healthy."""
    RESET = "reset"
    """The connection broke after the request was sent, before or during the answer."""
    EMPTY = "empty"
    """A 200 without a token, as a draining engine answers: suspended once a probe or another request confirms."""
    ERROR = "error"
    """5xx other than busy, an error event, or a 404 for a model that the pool serves."""
    TIMEOUT = "timeout"


class Pulse:
    """Counts what comes back of an engine: whoever reads the body of a 200 adds one for each chunk.

    Cheap, as that is done for every token; a look at it says whether anything came since the last.
    """

    __slots__ = ("beats",)

    def __init__(self) -> None:
        self.beats = 0


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send a granted request."""

    engine_id: str
    url: str
    """Base URL without a trailing slash."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Added to the request: data-parallel rank, the pool's own key."""
    pulse: Pulse | None = field(default=None, compare=False)
    """To be counted up by answers that the engine itself has computed."""


class Reachable(Protocol):
    """Engines that can be asked something that costs nothing."""

    def any_target(self) -> Target | None:
        """Some engine that is up, in turn. None if there is none."""
        ...

    def targets(self) -> tuple[Target, ...]:
        """All engines that are up: for a request that only one of them can know the answer to."""
        ...

    async def report(self, engine_id: str, trouble: Trouble) -> None:
        """What a request saw; takes effect on grants before this returns."""
        ...


class Engines(Reachable, Protocol):
    def shapes(self) -> frozenset[EngineShape]:
        """The shapes of all engines known so far, up or not. Empty until the first discovery."""
        ...

    def available(self) -> frozenset[str]:
        """Ids of the engines that take work or will in a moment (a busy one counts; a down, suspended,
        stalled or draining one does not).
        """
        ...

    def serves(self, model: str | None) -> bool:
        """Whether the pool answers to this model name (None: the client named none)."""
        ...

    def without(self, model: str | None) -> frozenset[str]:
        """Ids of the engines that have told their models and don't answer to this one: an adapter that is loaded
        on some engines only. Empty when the client named none.
        """
        ...

    def model_names(self) -> tuple[str, ...]: ...

    def target(self, engine_id: str) -> Target | None:
        """None when the engine left the pool meanwhile."""
        ...

    async def succeeded(self, engine_id: str) -> None:
        """A request ran to its end there."""
        ...

    async def tokenize(self, body: Mapping[str, object]) -> int:
        """Tokens of one prompt by an engine's `POST /tokenize`. Raises `tokens.base.TokenizeFailed`."""
        ...
