"""Which format a file of requests has, and its requests, whatever it is.

Besides kvgate's own request log there are three public traces. Each request of theirs becomes the line that the log
would have of it, with what the trace knows: when it came, the tokens of its prompt, those of its answer.

- **Azure LLM inference traces** (2023, 2024; github.com/Azure/AzurePublicDataset): CSV with the columns `TIMESTAMP`
  (date and time, UTC where it names no zone), `ContextTokens`, `GeneratedTokens`.
- **Mooncake** (FAST '25; github.com/kvcache-ai/Mooncake): a JSON object in each line with `timestamp` (ms),
  `input_length`, `output_length`, and `hash_ids`, one for each 512 tokens of the prompt, which are not used.
- **BurstGPT** (github.com/HPMLL/BurstGPT): CSV with `Timestamp` (seconds), `Request tokens`, `Response tokens`, and
  more that is not used: `Session ID`, `Elapsed time`, `Model`, `Total tokens`, `Log Type`. No response tokens is a
  request that failed.

The columns are found by their names, in any order. What a trace does not say is not made up: no waits, no limits.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from kvgate.errors import ConfigError
from kvgate.telemetry.request_line import LoggedRequest
from kvgate.traffic.lines import LINE_BYTES_MAX, numbered_lines

FILE_BYTES_MAX = 4 * 1024**3
"""Of a trace: the largest that is published, a week of Azure's, has 0.7 GB."""
TOKENS_MAX = 10_000_000
"""Of one prompt or answer: no model has such a window."""
BAD_LINES_SHOWN_MAX = 5
BAD_SHARE_MAX = 0.05
"""Of the lines: a trace with more of them that can't be read is not the trace it is taken for."""
TENANT = "anonymous"
"""Whose the requests of a trace are: none of them says."""


class Format(Enum):
    """The formats; the value is what people call it."""

    LOG = "request log"
    AZURE = "Azure LLM inference trace"
    MOONCAKE = "Mooncake trace"
    BURSTGPT = "BurstGPT trace"


COLUMNS: Mapping[Format, tuple[str, str, str]] = {
    Format.AZURE: ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    Format.MOONCAKE: ("timestamp", "input_length", "output_length"),
    Format.BURSTGPT: ("Timestamp", "Request tokens", "Response tokens"),
}
"""Of each trace: when, prompt, answer."""
_UNKNOWN = (
    "is no file of requests that is known: neither a request log of `kvgate serve --request-log FILE`, nor a public "
    "trace. Those are CSV with {azure} (Azure) or {burstgpt} (BurstGPT), or JSON lines with {mooncake} (Mooncake)"
)


@dataclass(slots=True)
class Reading:
    """What reading a file came to, apart from the requests."""

    lines: int = 0
    bad: int = 0
    """Lines that could not be read, and were skipped."""
    failed: int = 0
    """Requests of a trace that had no answer, and were left out."""
    shown: list[str] = field(default_factory=list[str])
    """The first bad lines, each with what is wrong with it."""

    def skip(self, number: int, why: str) -> None:
        self.bad += 1
        if len(self.shown) < BAD_LINES_SHOWN_MAX:
            self.shown.append(f"line {number:,}: {why}")

    def check(self, path: Path) -> None:
        """Raises ConfigError when too much of it could not be read."""
        if self.bad > BAD_SHARE_MAX * self.lines:
            raise ConfigError(
                f"{path}: {self.bad:,} of {self.lines:,} lines cannot be read, and more than {BAD_SHARE_MAX:.0%} "
                "is too much to go on with\n" + "\n".join(f"{path}: {one}" for one in self.shown)
            )


class BadLine(Exception):
    """A line that is no request, and why."""


def format_of(path: Path, said: str = "") -> Format:
    """By the first line. Raises ConfigError for a file that can't be read (`said` ends its message), or is none of
    them.
    """
    if path.is_fifo():
        raise ConfigError(f"{path} is a pipe; allowed: a file, which is read more than once")
    _, first = next(numbered_lines(path, said), (0, b""))
    text = _text(first).strip()
    if text.startswith("{"):
        found = _decoded(text)
        return Format.MOONCAKE if "input_length" in found and "arrived" not in found else Format.LOG
    names = set(_values(text))
    for known in (Format.AZURE, Format.BURSTGPT):
        if names.issuperset(COLUMNS[known]):
            return known
    if "," in text:
        raise ConfigError(f"{path} {unknown()}")
    return Format.LOG  # with no line that is one, which its reader tells of


def unknown() -> str:
    """What a file has to be."""
    return _UNKNOWN.format(
        **{known.name.lower(): "`" + "`, `".join(names) + "`" for known, names in COLUMNS.items()}
    )


def read_trace(path: Path, known: Format, reading: Reading) -> Iterator[LoggedRequest]:
    """The requests of a public trace, in its order; `reading` is filled in meanwhile.

    Raises ConfigError for a file that can't be read, is too large, or (at its end) has too many lines that are none.
    """
    _check_size(path)
    rows = _json_rows(path, reading) if known is Format.MOONCAKE else _csv_rows(path, reading)
    read = partial(_request, COLUMNS[known], _TIMES[known])
    for number, row in rows:
        reading.lines += 1
        try:
            request = read(row)
        except BadLine as error:
            reading.skip(number, str(error))
            continue
        if request is None:
            reading.failed += 1
        else:
            yield request
    reading.check(path)


def _check_size(path: Path) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if size > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: has {size:,} bytes; allowed: at most {FILE_BYTES_MAX:,}. Cut it in parts")


def _json_rows(path: Path, reading: Reading) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in numbered_lines(path):
        if line:
            yield number, _decoded(line)
        else:
            reading.lines += 1
            reading.skip(number, f"longer than {LINE_BYTES_MAX:,} bytes")


def _decoded(line: bytes | str) -> Mapping[str, Any]:
    """An object; one without anything for a line that is none."""
    try:
        found = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _csv_rows(path: Path, reading: Reading) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """A line is a row: none of the traces has a line break in a value."""
    names: list[str] = []
    for number, line in numbered_lines(path):
        values = _values(_text(line))
        if not names:
            names = values
        elif line:
            yield number, dict(zip(names, values, strict=False))
        else:
            reading.lines += 1
            reading.skip(number, f"longer than {LINE_BYTES_MAX:,} bytes")


def _text(line: bytes) -> str:
    return line.decode(errors="replace").replace("\0", "").rstrip("\r\n")


def _values(text: str) -> list[str]:
    """Of a line; none of one that is no CSV, such as one with a carriage return inside."""
    try:
        return [one.strip() for one in next(csv.reader([text]), [])]
    except csv.Error:
        return []


def _request(
    columns: tuple[str, str, str], time_of: Callable[[object], float], row: Mapping[str, Any]
) -> LoggedRequest | None:
    """None for one that had no answer. Raises BadLine."""
    when, prompt, output = (row.get(name) for name in columns)
    if when is None or prompt is None or output is None:
        raise BadLine(f"it has no `{'`, `'.join(name for name in columns if row.get(name) is None)}`")
    try:
        arrived = time_of(when)
    except (ValueError, OverflowError):
        raise BadLine(f"{columns[0]} {_shown(when)} is no time") from None
    prompt_tokens, output_tokens = _tokens(columns[1], prompt), _tokens(columns[2], output)
    if not output_tokens or not prompt_tokens:
        return None
    return LoggedRequest(
        arrived=arrived,
        tenant=TENANT,
        endpoint="chat",
        outcome="served",
        total_s=0.0,
        stream=True,
        queue_s=0.0,
        prompt_tokens=prompt_tokens,
        prompt_tokens_counted=prompt_tokens,
        prompt_tokens_exact=True,
        completion_tokens=output_tokens,
    )


def _tokens(name: str, value: object) -> int:
    """A whole number, perhaps written as `12.0`. Raises BadLine."""
    try:
        number = float(value) if isinstance(value, int | float | str) else -1.0
    except (ValueError, OverflowError):
        number = -1.0
    if not (0 <= number <= TOKENS_MAX and number == int(number)):
        raise BadLine(f"{name} {_shown(value)} is no number of tokens")
    return int(number)


def _shown(value: object) -> str:
    return repr(value if len(str(value)) <= 40 else str(value)[:40] + "…")


def _date_s(value: object) -> float:
    """Unix time of a date and time; without a zone it is UTC. Raises ValueError."""
    moment = datetime.fromisoformat(str(value))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _seconds(value: object, unit_s: float = 1.0) -> float:
    """Raises ValueError."""
    seconds = float(str(value)) * unit_s
    if not 0 <= seconds < 1e12:
        raise ValueError(value)
    return seconds


_TIMES: Mapping[Format, Callable[[object], float]] = {
    Format.AZURE: _date_s,
    Format.MOONCAKE: partial(_seconds, unit_s=0.001),
    Format.BURSTGPT: _seconds,
}
