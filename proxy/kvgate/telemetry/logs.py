"""The log: one line for each request, at its end, as JSON or text on stderr.

Promises: no prompt text, no answer text, no keys (`RequestRecord` has none). Under a flood of rejections at
most a few lines a second are written for each reason, and the number of those left out is. A reader that doesn't
keep up (a full pipe) never stalls the event loop: lines go through a bounded queue to a thread, and what doesn't
fit is counted and said.
"""

from __future__ import annotations

import atexit
import json
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TextIO

import msgspec

from kvgate.clock import Clock, SystemClock
from kvgate.telemetry.sampling import Sampler
from kvgate.telemetry.writer import QueuedWriter

if TYPE_CHECKING:
    from kvgate.telemetry.record import RequestRecord

LogFormat = Literal["json", "text"]
REJECTIONS_PER_S_MAX = 10
"""Log lines for each reason; enough to see who and why, too few to fill a disk."""
FIELDS = "kvgate_fields"
"""The attribute of a `LogRecord` that carries structured fields."""

SUPPRESSED = "requests that ran on no engine, not logged one by one"
CHATTY = ("httpx", "httpcore", "uvicorn.error", "asyncio")
"""Libraries that write a line for each probe: theirs are kept from WARNING on, except at level debug."""

_requests = logging.getLogger("kvgate.request")
_plain = json.JSONEncoder(default=str, ensure_ascii=True, separators=(",", ":")).encode
_fast = msgspec.json.Encoder(enc_hook=str)


class JSONFormatter(logging.Formatter):
    """One JSON object a line: `time` (UTC), `level`, `logger`, `message`, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _json(line)


class TextFormatter(logging.Formatter):
    """For people: time, level, message, then `key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        pairs = "".join(f" {key}={_quoted(value)}" for key, value in _fields(record).items())
        message = record.getMessage().replace("\n", "\\n")
        line = f"{_time(record)} {record.levelname:<7} {record.name}: {message}{pairs}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure_logs(
    level: str = "info", log_format: LogFormat = "json", stream: TextIO | None = None
) -> QueuedWriter:
    """Send all logging of this process to `stream` (stderr), and the root logger's old handlers away.

    The returned writer's `close` waits (bounded) until what was logged is written; it is also called at exit.
    Raises ValueError for an unknown level.
    """
    writer = QueuedWriter(stream or sys.stderr)
    writer.setFormatter(JSONFormatter() if log_format == "json" else TextFormatter())
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # not in our lines
    root = logging.getLogger()
    root.setLevel(level.upper())
    root.handlers[:] = [writer]
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.NOTSET if root.level <= logging.DEBUG else logging.WARNING)
    atexit.register(writer.close)
    return writer


class RequestLog:
    """Writes a line for each request that ended."""

    def __init__(
        self,
        clock: Clock | None = None,
        logger: logging.Logger = _requests,
        *,
        rejections_per_s_max: int = REJECTIONS_PER_S_MAX,
    ) -> None:
        self._clock = clock or SystemClock()
        self._logger = logger
        self._lines_max = rejections_per_s_max
        self._samplers: dict[str, Sampler] = {}
        """By reason, or else outcome: a flood of one must not hide the few of another."""

    def ended(self, record: RequestRecord) -> None:
        """Whatever ran on an engine is always written; the rest, rejections above all, is sampled."""
        now_s = self._clock.monotonic()
        for why, sampler in self._samplers.items():
            if sampler.owes_count(now_s):
                self._tell_suppressed(why, sampler)
        if record.engine_id is None and not self._sampler_of(record).admits(now_s):
            return
        if self._logger.isEnabledFor(logging.INFO):
            self._write(record)

    def close(self) -> None:
        """Say what was left out since the last line."""
        for why, sampler in self._samplers.items():
            self._tell_suppressed(why, sampler)

    def _sampler_of(self, record: RequestRecord) -> Sampler:
        why = record.reason or (record.outcome.value if record.outcome else "unknown")
        known = self._samplers.get(why)
        if known is None:
            known = self._samplers[why] = Sampler(self._lines_max)
        return known

    def _write(self, record: RequestRecord) -> None:
        """As `Logger.info`, without its search through the stack for the line that called it."""
        logger, outcome = self._logger, record.outcome.value if record.outcome else "unknown"
        extra = {FIELDS: record.as_log_fields()}
        logger.handle(logger.makeRecord(logger.name, logging.INFO, "", 0, outcome, (), None, extra=extra))

    def _tell_suppressed(self, why: str, sampler: Sampler) -> None:
        count = sampler.take_suppressed()
        if count:
            self._logger.warning(SUPPRESSED, extra={FIELDS: {"reason": why, "count": count}})


def _json(line: dict[str, object]) -> str:
    """One line of ASCII, whatever is in it. Nearly every line is ASCII already, and written the fast way."""
    try:
        text = _fast.encode(line)
    except (
        msgspec.MsgspecError,
        UnicodeError,
        TypeError,
        ValueError,
        OverflowError,
    ):  # a lone surrogate, say
        return _plain(line)
    return text.decode("ascii") if text.isascii() else _plain(line)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, FIELDS, None)
    return fields if isinstance(fields, dict) else {}


def _quoted(value: object) -> str:
    text = str(value)
    return json.dumps(text) if not text.isprintable() or " " in text or '"' in text else text
