"""The requests of a file, one by one, whatever its format: a request log with what was put aside of it, or a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvgate.telemetry.request_line import LoggedRequest
from kvgate.traffic.formats import Format, Reading, format_of, read_trace
from kvgate.traffic.lines import LINE_BYTES_MAX, numbered_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES_MAX = 1000
HOW = ". kvgate writes a log with --request-log FILE"

_decode = msgspec.json.Decoder(LoggedRequest).decode


def read_requests(path: Path, reading: Reading) -> Iterator[LoggedRequest]:
    """In the order of the file; a log has a line when a request ends. `reading` is filled in meanwhile.

    Lines that are no requests are skipped and counted. Raises ConfigError for a file that can't be read, is of no
    known format, or is a trace with too many such lines.
    """
    known = format_of(path, HOW)
    return _read_log(path, reading) if known is Format.LOG else read_trace(path, known, reading)


def is_trace(path: Path) -> bool:
    """Whether it is a public trace, which knows lengths and arrivals only. Raises ConfigError as `read_requests`."""
    return format_of(path, HOW) is not Format.LOG


def files_of(path: Path) -> list[Path]:
    """The oldest first: FILE.2, FILE.1, FILE."""
    aside = [path.with_name(f"{path.name}.{number}") for number in range(FILES_MAX, 0, -1)]
    return [*(one for one in aside if one.is_file()), path]


def _read_log(path: Path, reading: Reading) -> Iterator[LoggedRequest]:
    for file in files_of(path):
        for number, line in numbered_lines(file, HOW):
            reading.lines += 1
            try:
                request = _decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                why = str(error) if line else f"longer than {LINE_BYTES_MAX:,} bytes"
                reading.skip(number, why if file == path else f"{why} ({file.name})")
                continue
            yield request
