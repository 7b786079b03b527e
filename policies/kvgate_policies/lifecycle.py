"""The states of a request between asking for room and giving it back, as one table.

1. A request has exactly one state; the events that may happen in it are in `TRANSITIONS`, nothing else is
   legal.
2. It holds a reservation in granted, prefill, decode and draining, and in no other state.
3. It is granted only out of the queue, and never once it has ended: a grant that crosses a cancel is given
   back by that cancel.
4. `cancel` is for what was not sent yet. What was sent ends by `release`, once the engine has let go: an
   upstream closed early is draining until then, because the step in flight still uses its blocks.
5. `release` ends whatever is there, so that the one way out at the end of a request is always right.
6. After the first token a request never goes back to the queue: the client has seen part of the answer.
7. An engine that restarted voids its reservations. The request itself goes on until its owner notices, and
   may then queue again or end.
8. Events that may come twice, or cross one another, change nothing; they are listed in `REPEATABLE`, each
   as a decision rather than by a default.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(StrEnum):
    QUEUED = "queued"
    GRANTED = "granted"
    """Room is reserved, nothing was sent."""
    PREFILL = "prefill"
    """Sent; no token came back."""
    DECODE = "decode"
    """At least one token came back: the prompt is computed."""
    DRAINING = "draining"
    """The upstream was closed early; the engine may still use the blocks for a moment."""
    VOIDED = "voided"
    """The engine lost the reservation; the owner does not know yet."""
    ENDED = "ended"


class Event(StrEnum):
    GRANT = "grant"
    REFUSE = "refuse"
    """The ledger gives up on a queued request: it never fits any more, or the ledger closes."""
    SEND = "send"
    FIRST_TOKEN = "first_token"  # noqa: S105 - a token of a model
    CLOSE_UPSTREAM = "close_upstream"
    REQUEUE = "requeue"
    """Give the room back and wait again at the old place: busy engine, failed connection, empty answer."""
    CANCEL = "cancel"
    RELEASE = "release"
    VOID = "void"


Move = tuple[State, Event]

TRANSITIONS: Mapping[Move, State] = MappingProxyType(
    {
        (State.QUEUED, Event.GRANT): State.GRANTED,
        (State.QUEUED, Event.REFUSE): State.ENDED,
        (State.QUEUED, Event.CANCEL): State.ENDED,
        (State.QUEUED, Event.RELEASE): State.ENDED,
        (State.GRANTED, Event.SEND): State.PREFILL,
        (State.GRANTED, Event.REQUEUE): State.QUEUED,
        (State.GRANTED, Event.CANCEL): State.ENDED,
        (State.GRANTED, Event.RELEASE): State.ENDED,
        (State.GRANTED, Event.VOID): State.VOIDED,
        (State.PREFILL, Event.FIRST_TOKEN): State.DECODE,
        (State.PREFILL, Event.REQUEUE): State.QUEUED,
        (State.PREFILL, Event.CLOSE_UPSTREAM): State.DRAINING,
        (State.PREFILL, Event.RELEASE): State.ENDED,
        (State.PREFILL, Event.VOID): State.VOIDED,
        (State.DECODE, Event.CLOSE_UPSTREAM): State.DRAINING,
        (State.DECODE, Event.RELEASE): State.ENDED,
        (State.DECODE, Event.VOID): State.VOIDED,
        (State.DRAINING, Event.RELEASE): State.ENDED,
        (State.DRAINING, Event.VOID): State.ENDED,
        (State.VOIDED, Event.REQUEUE): State.QUEUED,
        (State.VOIDED, Event.CANCEL): State.ENDED,
        (State.VOIDED, Event.RELEASE): State.ENDED,
    }
)

REPEATABLE: frozenset[Move] = frozenset(
    {
        # Several sequences of one request each have a first token.
        (State.DECODE, Event.FIRST_TOKEN),
        (State.DRAINING, Event.CLOSE_UPSTREAM),
        # The owner goes on with a lost reservation until it sees the broken connection.
        (State.VOIDED, Event.SEND),
        (State.VOIDED, Event.FIRST_TOKEN),
        (State.VOIDED, Event.CLOSE_UPSTREAM),
        (State.VOIDED, Event.VOID),
        # The ways out are idempotent and safe after one another.
        (State.ENDED, Event.CLOSE_UPSTREAM),
        (State.ENDED, Event.CANCEL),
        (State.ENDED, Event.RELEASE),
        (State.ENDED, Event.VOID),
    }
)

HOLDING: frozenset[State] = frozenset({State.GRANTED, State.PREFILL, State.DECODE, State.DRAINING})
"""The states that hold a reservation (rule 2)."""


class IllegalTransition(Exception):
    """An event that cannot happen in this state: a bug in whoever raised the event."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"{event.value} cannot happen to a request that is {state.value}")
        self.state = state
        self.event = event


def step(state: State, event: Event) -> State:
    """The state after `event`. Raises IllegalTransition naming both."""
    move = (state, event)
    if move in REPEATABLE:
        return state
    if move not in TRANSITIONS:
        raise IllegalTransition(state, event)
    return TRANSITIONS[move]


def diagram() -> str:
    """The table as a mermaid state diagram, one arrow for each pair of states; what repeats is left out."""
    events: dict[tuple[State, State], list[str]] = {}
    for (state, event), after in TRANSITIONS.items():
        events.setdefault((state, after), []).append(event.value)
    arrows = [f"    {a.value} --> {b.value}: {', '.join(names)}" for (a, b), names in events.items()]
    start, end = f"    [*] --> {State.QUEUED.value}", f"    {State.ENDED.value} --> [*]"
    return "\n".join(["stateDiagram-v2", start, *arrows, end])
