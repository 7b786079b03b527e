from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from kvgate.demo.frame import EngineFrame, Frame, Streams, streams_of
from kvgate.demo.phase import LedgerWatch
from kvgate.demo.view import LineDisplay, LiveDisplay, display_on, line, picture
from kvgate.load import StreamEnd, StreamRecord

ENGINES = (
    EngineFrame("engine 1", 120, 118, 120, 12, 0, 0),
    EngineFrame("engine 2", 120, 60, 140, 6, 3, 7),
)
FRAME = Frame("through kvgate", 12.4, ENGINES, Streams(40, 20, 3, 33, 0), 40)


def _written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _printed(renderable, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(renderable)
    return _written(console)


@pytest.mark.parametrize("width", [30, 40, 80, 200])
def test_the_picture_fits_every_width_and_keeps_its_numbers(width):
    text = _printed(picture(FRAME, width), width)
    assert max(cell_len(each) for each in text.splitlines()) <= width
    words = " ".join(text.split())
    for part in (
        "118/120",
        "140/120",
        "60/120",
        "3 frozen",
        "7 preempted",
        "33 done",
        "40 in kvgate's queue",
    ):
        assert part in words


def test_without_kvgate_nothing_is_reserved_or_queued():
    engine = EngineFrame("engine 1", 120, 118, None, 18, 30, 5)
    text = _printed(picture(Frame("direct", 1.0, (engine,), Streams(30, 18, 0, 0, 0), None), 80), 80)
    assert "reserved" not in text
    assert "queue" not in text


def test_bars_are_proportional_and_never_longer_than_their_frame():
    lines = _printed(picture(FRAME, 80), 80).splitlines()
    filled = [each.count("█") for each in lines if "/" in each]
    assert filled == [48, 47, 48, 24]


def test_a_line_has_it_all_and_only_failures_shout():
    text = line(FRAME)
    for part in (
        "through kvgate",
        "20 streaming",
        "3 frozen",
        "queue 40",
        "118/120",
        "140 reserved",
        "7 preempted",
    ):
        assert part in text
    assert "FAILED" not in text
    failing = Frame("direct", 1.0, ENGINES, Streams(0, 0, 0, 90, 6), None)
    assert "6 FAILED" in line(failing)


def test_a_terminal_gets_a_picture_and_a_pipe_gets_lines():
    assert isinstance(display_on(Console(file=io.StringIO(), force_terminal=True)), LiveDisplay)
    assert isinstance(display_on(Console(file=io.StringIO(), force_terminal=False)), LineDisplay)
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    assert isinstance(display_on(dumb), LineDisplay)


def test_lines_are_not_printed_for_every_frame():
    console = Console(file=io.StringIO(), width=40)
    with LineDisplay(console) as display:
        for _ in range(10):
            display.show(FRAME)
    assert _written(console).count("\n") == 1


def test_the_cursor_comes_back_even_after_an_exception():
    console = Console(file=io.StringIO(), force_terminal=True, width=80, _environ={"TERM": "xterm"})
    with pytest.raises(KeyboardInterrupt), LiveDisplay(console) as display:
        display.show(FRAME)
        raise KeyboardInterrupt
    hide, show = "\x1b[?25l", "\x1b[?25h"
    written = _written(console)
    assert hide in written
    assert written.rindex(show) > written.rindex(hide)


def test_no_color_means_no_colour():
    environ = {"TERM": "xterm-256color", "NO_COLOR": "1"}
    console = Console(file=io.StringIO(), force_terminal=True, width=80, _environ=environ)
    console.print(picture(FRAME, 80))
    assert not any(f"\x1b[{code}" in _written(console) for code in ("31", "32", "36", "38"))


def _record(times_s, end=None) -> StreamRecord:
    return StreamRecord(0, "http://e", 3, 0.0, list(times_s), end)


def test_every_session_is_in_exactly_one_state():
    records = [
        _record([]),
        _record([9.9]),
        _record([1.0]),
        _record([1.0], StreamEnd.COMPLETED),
        _record([], StreamEnd.FAILED),
    ]
    streams = streams_of(records, offered=7, now_s=10.0, freeze_gap_s=1.0)
    assert streams == Streams(waiting=3, streaming=1, frozen=1, done=1, failed=1)


def test_the_ledger_watch_keeps_the_most():
    watch = LedgerWatch("http://admin")
    for reservations in (3, 12, 1):
        engine = {"engine_id": "e", "reserved_blocks": 10 * reservations, "reservations": reservations}
        watch.note({"queued": reservations, "engines": [engine]})
    assert (watch.queued, watch.reserved_blocks, watch.reservations_max) == (1, {"e": 10}, {"e": 12})
