"""A log handler that never makes its caller wait.

Formatting happens in the caller (an exception's frames may change later), writing in one thread behind a
bounded queue. The thread is woken once for many lines, not for each: a wake-up costs the caller more than the
line itself, and makes two threads contend for the interpreter.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from itertools import islice
from typing import TextIO

LINES_MAX = 10_000
"""Lines in the queue: about 5 MB, and several seconds of a busy proxy's log."""
GATHER_S = 0.05
"""How long lines are gathered before they are written together."""
BATCH_LINES_MAX = 1000
"""Lines in one write: half a megabyte."""
CLOSE_S_MAX = 2.0
"""For a reader that is stuck: then the process ends without its last lines."""


class QueuedWriter(logging.Handler):
    """Writes lines to a stream from a thread; drops and counts what the stream doesn't take in time."""

    def __init__(self, stream: TextIO, lines_max: int = LINES_MAX) -> None:
        super().__init__()
        self._stream = stream
        self._lines_max = lines_max
        self._lines: deque[str] = deque()
        """Not written yet; a line leaves when it has been."""
        self._dropped = 0
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines that were lost since this was last written to the stream."""
        return self._dropped

    def emit(self, record: logging.LogRecord) -> None:
        """One caller at a time: `logging` holds the handler's lock."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001  a line that can't be formatted must not end a request
            self.handleError(record)
            return
        if not self._thread.is_alive():  # closed: what the interpreter says at its end, with nobody to wait
            self._write(line + "\n", 1)
        elif len(self._lines) >= self._lines_max:
            self._dropped += 1
        else:
            self._lines.append(line)
            if not self._wanted.is_set():
                self._wanted.set()

    def close(self, wait_s_max: float = CLOSE_S_MAX) -> None:
        """Write what is queued, at most `wait_s_max` long, and stop. Idempotent."""
        super().close()
        self._closing.set()
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join(wait_s_max)

    def _write_all(self) -> None:
        while not self._closing.is_set():
            self._wanted.wait()
            self._closing.wait(GATHER_S)
            self._wanted.clear()  # before the lines are looked at: one that comes later sets it again
            while self._lines:
                self._write_batch()
            self._tell_dropped()

    def _write_batch(self) -> None:
        batch = list(islice(self._lines, BATCH_LINES_MAX))
        self._write("\n".join(batch) + "\n", len(batch))
        for _ in batch:
            self._lines.popleft()

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
        self._write(self.format(record) + "\n", 1)

    def _write(self, text: str, lines: int) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the reader is gone; nobody is left to be told
            self._dropped += lines
