"""The demo on a screen: frames as bars or as lines, and the closing table.

A terminal gets a live picture; a pipe, a log or a dumb terminal gets a plain line every two seconds. rich
keeps to NO_COLOR and to the width by itself; bars shrink first, and no information is in colour alone.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvgate.demo.words import Row, better_rows, meaning, same_rows

if TYPE_CHECKING:
    from kvgate.demo.frame import EngineFrame, Frame, Streams
    from kvgate.demo.verdict import Result

_LINE_INTERVAL_S = 2.0
_BAR_WIDTH_MAX = 48
_BAR_WIDTH_MIN = 8
_BESIDE_BAR = 24
"""Columns for the label before a bar and the figures after it."""


class Display(Protocol):
    """Where frames are shown. A context: leaving it gives the terminal back as it was."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...

    def show(self, frame: Frame) -> None: ...


def display_on(console: Console) -> Display:
    """A live picture on a terminal, lines elsewhere."""
    live = console.is_terminal and not console.is_dumb_terminal
    return LiveDisplay(console) if live else LineDisplay(console)


class LiveDisplay:
    """Redraws in place; the last frame of a phase stays."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def show(self, frame: Frame) -> None:
        self._live.update(picture(frame, self._console.width), refresh=True)


class LineDisplay:
    """A line every two seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def show(self, frame: Frame) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _LINE_INTERVAL_S
            self._console.print(line(frame), highlight=False, markup=False, soft_wrap=True)


def line(frame: Frame) -> str:
    """A frame in one line."""
    engines = " | ".join(_engine_words(engine) for engine in frame.engines)
    queued = "" if frame.queued is None else f" | queue {frame.queued}"
    return f"{frame.title} {frame.elapsed_s:4.0f} s | {_stream_words(frame.streams)}{queued} | {engines}"


def _stream_words(streams: Streams) -> str:
    failed = f", {streams.failed} FAILED" if streams.failed else ""
    return (
        f"{streams.streaming} streaming, {streams.frozen} frozen, {streams.waiting} waiting, "
        f"{streams.done} done{failed}"
    )


def _engine_words(engine: EngineFrame) -> str:
    reserved = "" if engine.reserved is None else f", {engine.reserved} reserved"
    return (
        f"{engine.name}: {engine.used}/{engine.blocks} blocks in use{reserved}, {engine.running} running, "
        f"{engine.preemptions} preempted"
    )


def picture(frame: Frame, width: int) -> RenderableType:
    """A frame as bars, for a terminal of `width` columns."""
    bar_width = max(min(width - _BESIDE_BAR, _BAR_WIDTH_MAX), _BAR_WIDTH_MIN)
    parts: list[RenderableType] = [Text(f"{frame.title}  {frame.elapsed_s:.0f} s", style="bold")]
    for engine in frame.engines:
        parts += _engine_lines(engine, bar_width)
    parts.append(_stream_line(frame))
    return Group(*parts)


def _engine_lines(engine: EngineFrame, bar_width: int) -> list[RenderableType]:
    pressed = "red" if engine.preemptions else "green"
    title = Text(f"{engine.name}  {engine.running} running, {engine.waiting} waiting, ")
    title.append(f"{engine.preemptions} preempted", style=pressed)
    lines: list[RenderableType] = [title]
    if engine.reserved is not None:
        lines.append(_bar("reserved", engine.reserved, engine.blocks, bar_width, "cyan"))
    lines.append(_bar("in use", engine.used, engine.blocks, bar_width, pressed))
    return lines


def _bar(label: str, part: int, whole: int, width: int, style: str) -> Text:
    """A bar that is never longer than its frame; an overdrawn figure still shows in the number."""
    filled = min(round(width * part / whole), width)
    bar = Text(f"  {label:<9}", no_wrap=True, overflow="crop")
    bar.append("█" * filled, style=style)
    bar.append("·" * (width - filled), style="dim")
    return bar.append(f" {part}/{whole}")


def _stream_line(frame: Frame) -> Text:
    streams = frame.streams
    text = Text("streams  ")
    text.append(f"{streams.streaming} streaming, ")
    text.append(f"{streams.frozen} frozen", style="bold red" if streams.frozen else "")
    text.append(f", {streams.waiting} without a token yet, {streams.done} done")
    if streams.failed:
        text.append(f", {streams.failed} failed", style="bold red")
    if frame.queued is not None:
        text.append(f"; {frame.queued} in kvgate's queue", style="cyan")
    return text


def closing(result: Result) -> RenderableType:
    """The table, what it means, and the verdict."""
    words, style = ("As claimed.", "bold green") if result.ok else ("NOT as claimed.", "bold red")
    paragraphs = [Text(f"\n{paragraph}") for paragraph in meaning(result)]
    table = _table(better_rows(result), same_rows(result))
    return Group(table, *paragraphs, Text(f"\n{words}", style=style))


def _table(better: list[Row], same: list[Row]) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("")
    table.add_column("direct", justify="right")
    table.add_column("kvgate", justify="right")
    for row in better:
        table.add_row(row.name, row.direct, Text(row.kvgate, style="bold"))
    table.add_section()
    for row in same:
        table.add_row(row.name, row.direct, row.kvgate)
    return table
