"""The lines of a file, numbered and bounded: a line that has no end costs its bound of memory and is none."""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import TYPE_CHECKING, BinaryIO

from kvgate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINE_BYTES_MAX = 64 * 1024
"""A line of a request log is half a kilobyte, and with the longest names two. Of the public traces the longest are
those with a hash for each 512 tokens of a prompt: a million tokens are 20 KB."""


def numbered_lines(path: Path, said: str = "") -> Iterator[tuple[int, bytes]]:
    """Number, from 1, and content of each line that is not blank; one that is too long is empty.

    Raises ConfigError, with `said` at its end, for a file that can't be read.
    """
    try:
        with path.open("rb") as opened:
            yield from _lines(opened)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}{said}") from error


def _lines(opened: BinaryIO) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := opened.readline(LINE_BYTES_MAX):
        number += 1
        if number == 1:
            line = line.removeprefix(BOM_UTF8)  # a mark that some programs put before a text
        if line[-1:] != b"\n" and len(line) == LINE_BYTES_MAX and _skip_rest(opened):
            yield number, b""
        elif line.strip():
            yield number, line


def _skip_rest(opened: BinaryIO) -> bool:
    """Go on to the end of the line; whether there was more of it."""
    more = False
    while rest := opened.readline(LINE_BYTES_MAX):
        more = True
        if rest[-1:] == b"\n":
            break
    return more
