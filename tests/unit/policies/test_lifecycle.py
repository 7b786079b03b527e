from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate_policies.lifecycle import (
    HOLDING,
    REPEATABLE,
    TRANSITIONS,
    Event,
    IllegalTransition,
    State,
    diagram,
    step,
)

EVERY_MOVE = list(itertools.product(State, Event))


def walk(*events: Event, start: State = State.QUEUED) -> State:
    state = start
    for event in events:
        state = step(state, event)
    return state


@pytest.mark.parametrize(("state", "event"), EVERY_MOVE)
def test_every_move_is_decided(state: State, event: Event) -> None:
    move = (state, event)
    if move in TRANSITIONS:
        assert step(state, event) is TRANSITIONS[move]
        assert TRANSITIONS[move] is not state
    elif move in REPEATABLE:
        assert step(state, event) is state
    else:
        with pytest.raises(IllegalTransition, match=rf"\b{event.value}\b.*\b{state.value}\b") as caught:
            step(state, event)
        assert (caught.value.state, caught.value.event) == move


def test_no_move_is_listed_twice() -> None:
    assert not REPEATABLE & TRANSITIONS.keys()
    assert len(TRANSITIONS) + len(REPEATABLE) < len(EVERY_MOVE)


def test_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[State.ENDED, Event.GRANT] = State.GRANTED  # type: ignore[index]


def test_whole_life() -> None:
    assert walk(Event.GRANT, Event.SEND) is State.PREFILL
    assert walk(Event.GRANT, Event.SEND, Event.FIRST_TOKEN, Event.FIRST_TOKEN) is State.DECODE
    assert walk(Event.GRANT, Event.SEND, Event.FIRST_TOKEN, Event.RELEASE) is State.ENDED
    assert walk(Event.GRANT, Event.SEND, Event.CLOSE_UPSTREAM, Event.RELEASE) is State.ENDED
    assert walk(Event.GRANT, Event.SEND, Event.REQUEUE, Event.GRANT) is State.GRANTED
    assert walk(Event.GRANT, Event.VOID, Event.SEND, Event.REQUEUE) is State.QUEUED


@pytest.mark.parametrize("state", [s for s in State if s is not State.QUEUED])
def test_granted_only_out_of_the_queue(state: State) -> None:
    with pytest.raises(IllegalTransition):
        step(state, Event.GRANT)


@pytest.mark.parametrize("state", [State.DECODE, State.DRAINING, State.ENDED])
def test_nothing_goes_back_to_the_queue_once_seen_by_the_client(state: State) -> None:
    with pytest.raises(IllegalTransition):
        step(state, Event.REQUEUE)


@pytest.mark.parametrize("state", [State.PREFILL, State.DECODE, State.DRAINING])
def test_what_was_sent_cannot_be_cancelled_away(state: State) -> None:
    with pytest.raises(IllegalTransition):
        step(state, Event.CANCEL)


@pytest.mark.parametrize("state", State)
def test_release_ends_whatever_is_there(state: State) -> None:
    assert step(state, Event.RELEASE) is State.ENDED


def test_room_is_lost_by_a_restart_wherever_it_is_held() -> None:
    for state in HOLDING:
        assert step(state, Event.VOID) not in HOLDING


@given(st.lists(st.sampled_from(Event), max_size=30))
def test_no_order_of_events_leaves_the_end(events: list[Event]) -> None:
    state, ended = State.QUEUED, False
    for event in events:
        try:
            state = step(state, event)
        except IllegalTransition:
            continue
        assert not ended or state is State.ENDED
        ended = state is State.ENDED


def test_diagram_shows_each_arrow_once() -> None:
    lines = diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert "    queued --> granted: grant" in lines
    assert "    queued --> ended: refuse, cancel, release" in lines
    arrows = [line.partition(":")[0] for line in lines[1:]]
    assert len(arrows) == len(set(arrows))
    named = [name for line in lines for name in line.partition(": ")[2].split(", ") if name]
    assert len(named) == len(TRANSITIONS)
