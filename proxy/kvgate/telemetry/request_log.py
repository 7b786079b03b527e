"""The request log: a file with one JSON line for each request that ended, for `kvgate traffic` and `kvgate plan`.

Off unless a file is named. Writing never makes the event loop wait: lines go through a bounded buffer to a thread.
What the disk does not take stays in the buffer and is tried again; what the buffer does not take is dropped, and the
caller is told. What a line has is said in `request_line`, and how several processes share the file in
`appended_file`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvgate.errors import ConfigError
from kvgate.telemetry.appended_file import AppendedFile
from kvgate.telemetry.request_line import logged

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvgate.telemetry.record import RequestRecord

BYTES_MAX = 100_000_000
FILES_MAX = 10
LINES_MAX = 20_000
"""Lines that wait for the disk: about 10 MB, and several seconds of a busy proxy."""
BATCH_LINES_MAX = 500
"""Lines in one write: a quarter of a megabyte."""
GATHER_S = 0.1
"""How long lines are gathered before they are written together."""
RETRY_S = 1.0
"""After a write that failed."""
CLOSE_S_MAX = 2.0
"""For the disk at the end; then the last lines are lost."""

log = logging.getLogger(__name__)


class RequestFile:
    """Appends the line of each request to a file. One for a process."""

    def __init__(
        self,
        path: str,
        *,
        bytes_max: int = BYTES_MAX,
        files_max: int = FILES_MAX,
        lines_max: int = LINES_MAX,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Raises ConfigError when the file can't be opened for appending."""
        self._file = AppendedFile(Path(path), bytes_max, files_max)
        try:
            self._file.open()
        except OSError as error:
            raise ConfigError(
                f"--request-log: {path} cannot be written ({error.strerror}); name a file in a directory where "
                "kvgate may write"
            ) from error
        self._lines_max = lines_max
        self._now = now
        self._encode = msgspec.json.Encoder().encode
        self._lines: deque[bytes] = deque()
        """Not written yet; a line leaves when it has been."""
        self._failing = False
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="request-log", daemon=True)
        self._thread.start()

    def ended(self, record: RequestRecord) -> bool:
        """Write it soon; False when there is no room for it. Requests to paths that cost no KV cache are left out."""
        if record.endpoint is None:
            return True
        if len(self._lines) >= self._lines_max:
            return False
        self._lines.append(self._encode(logged(record, self._now())))
        if not self._wanted.is_set():
            self._wanted.set()
        return True

    def close(self, wait_s_max: float = CLOSE_S_MAX) -> None:
        """Write what waits, at most `wait_s_max` long, and stop. Idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._wanted.set()
        self._thread.join(wait_s_max)
        if self._lines:
            log.warning("%d lines of the request log were lost: it could not be written", len(self._lines))

    def _write_all(self) -> None:
        while not self._closing.is_set():
            self._wanted.wait()
            self._closing.wait(GATHER_S)
            self._wanted.clear()  # before the lines are looked at: one that comes later sets it again
            self._write_waiting()
        self._write_waiting()
        self._file.close()

    def _write_waiting(self) -> None:
        """Until nothing waits; what fails is tried again, unless this is the end."""
        while self._lines:
            if self._write_batch():
                self._failing = False
            elif self._closing.wait(RETRY_S):
                return

    def _write_batch(self) -> bool:
        batch = list(islice(self._lines, BATCH_LINES_MAX))
        try:
            self._file.append(batch)
        except OSError as error:
            if not self._failing:
                log.warning("the request log cannot be written, and is tried again: %s", error)
            self._failing = True
            return False
        for _ in batch:
            self._lines.popleft()
        return True
