from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.load.events import EventSplitter, read_event


def _chunk(**fields) -> bytes:
    return json.dumps(fields).encode()


@given(
    events=st.lists(
        st.binary(min_size=1).filter(lambda b: b"\n" not in b and not b.endswith(b"\r")), max_size=8
    ),
    cuts=st.lists(st.integers(min_value=0, max_value=200), max_size=8),
    newline=st.sampled_from([b"\n", b"\r\n"]),
)
def test_events_survive_any_cut(events: list[bytes], cuts: list[int], newline: bytes):
    wire = b"".join(b"data: " + event + newline + newline for event in events)
    splitter, got, before = EventSplitter(), [], 0
    for cut in [*sorted(cuts), len(wire)]:
        got += splitter.feed(wire[before:cut])
        before = max(before, cut)
    assert got == events


def test_comments_event_names_and_several_data_lines():
    assert EventSplitter().feed(b": hi\nevent: x\ndata: a\ndata:b\n\n\n\ndata: c\n\n") == [b"a\nb", b"c"]


def test_an_endless_event_is_refused():
    splitter = EventSplitter()
    splitter.feed(b"data: " + b"x" * 1_000_000)
    with pytest.raises(ValueError, match="more than"):
        splitter.feed(b"x" * 100_000)


def test_tokens_are_counted_by_running_usage():
    usage = {"prompt_tokens": 7, "completion_tokens": 5}
    progress = read_event(_chunk(choices=[{"text": "abc"}], usage=usage), tokens_before=2)
    assert (progress.tokens, progress.prompt_tokens, progress.completion_tokens) == (3, 7, 5)


@pytest.mark.parametrize(
    ("choice", "tokens"),
    [
        ({"text": "a"}, 1),
        ({"delta": {"content": "a"}}, 1),
        ({"delta": {"role": "assistant", "content": ""}}, 0),
        ({"text": ""}, 0),
    ],
)
def test_without_running_usage_a_chunk_with_text_is_a_token(choice, tokens):
    assert read_event(_chunk(choices=[choice]), tokens_before=4).tokens == tokens


def test_no_token_arrives_with_the_closing_usage():
    progress = read_event(
        _chunk(choices=[], usage={"prompt_tokens": 1, "completion_tokens": 9}), tokens_before=4
    )
    assert (progress.tokens, progress.completion_tokens) == (0, 9)


def test_finish_done_and_error():
    assert read_event(_chunk(choices=[{"text": "", "finish_reason": "abort"}]), 0).finish_reason == "abort"
    assert read_event(b"[DONE]", 3).done
    assert read_event(_chunk(error={"message": "engine died", "code": 500}), 3).error == "engine died"
    assert read_event(_chunk(error="gone"), 3).error == "gone"


@pytest.mark.parametrize("data", [b"", b"<html>", b"[]", b'{"choices": 3}', b"\xff"])
def test_what_is_no_chunk_is_an_error(data: bytes):
    with pytest.raises((msgspec.MsgspecError, ValueError)):
        read_event(data, 0)


def test_an_event_nested_too_deeply_is_no_chunk() -> None:
    with pytest.raises(msgspec.MsgspecError):
        read_event(b'{"error": ' + b"[" * 100_000, tokens_before=0)
