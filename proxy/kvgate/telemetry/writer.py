"""A log handler that never makes its caller wait.

Formatting happens in the caller (an exception's frames may change later), writing in one thread behind a
bounded queue.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import TextIO

LINES_MAX = 10_000
"""Lines in the queue: about 5 MB, and several seconds of a busy proxy's log."""
CLOSE_S_MAX = 2.0
"""For a reader that is stuck: then the process ends without its last lines."""


class QueuedWriter(logging.Handler):
    """Writes lines to a stream from a thread; drops and counts what the stream doesn't take in time."""

    def __init__(self, stream: TextIO, lines_max: int = LINES_MAX) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(lines_max)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write_all, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines that were lost since this was last written to the stream."""
        return self._dropped

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            if self._thread.is_alive():
                self._lines.put_nowait(line)
            else:  # closed: what the interpreter says at its end, with nobody left to wait
                self._write(line)
        except queue.Full:
            self._dropped += 1
        except Exception:  # noqa: BLE001  a line that can't be formatted must not end a request
            self.handleError(record)

    def close(self, wait_s_max: float = CLOSE_S_MAX) -> None:
        """Write what is queued, at most `wait_s_max` long, and stop. Idempotent."""
        super().close()
        if self._thread.is_alive():
            try:
                self._lines.put(None, timeout=wait_s_max)
            except queue.Full:
                return
            self._thread.join(wait_s_max)

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            self._write(line)
            if self._lines.empty():
                self._tell_dropped()
        self._tell_dropped()

    def _tell_dropped(self) -> None:
        dropped, self._dropped = self._dropped, 0
        if not dropped:
            return
        record = logging.makeLogRecord(
            {
                "name": __name__,
                "levelno": logging.WARNING,
                "levelname": "WARNING",
                "msg": "log lines dropped: the reader of the log is too slow",
                "kvgate_fields": {"count": dropped},
            }
        )
        self._write(self.format(record))

    def _write(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # the reader is gone; nobody is left to be told
            self._dropped += 1
