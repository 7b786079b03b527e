"""A file that several processes append whole lines to, and that is put aside when it is large.

Each write is one `write(2)` of whole lines to a file opened for appending, which the kernel does not mix with
another's. Whoever finds the file too large puts it aside, under a lock that nobody waits for; the others notice that
the file under the name is another one, and open it. Files are FILE, FILE.1 (the one before), FILE.2 …
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FILE_MODE = 0o640
"""Tenants, models and habits are nobody else's business."""


class AppendedFile:
    """One process's hold of it. For one thread."""

    def __init__(self, path: Path, bytes_max: int, files_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._fd = -1
        self._torn = False

    def open(self) -> None:
        """Open it anew. Raises OSError."""
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        self.close()
        self._fd, self._torn = fd, False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def append(self, lines: list[bytes]) -> None:
        """Write the lines at once. Raises OSError; then part of them may be there, and comes once more."""
        self._open_if_moved()
        text = (b"\n" if self._torn else b"") + b"\n".join(lines) + b"\n"
        written = os.write(self._fd, text)
        self._torn = written < len(text)  # the disk is full: what is cut off is no line, and readers skip it
        if self._torn:
            raise OSError(28, "No space left on device")
        if os.fstat(self._fd).st_size >= self._bytes_max:
            self._put_aside()

    def _open_if_moved(self) -> None:
        """Another process may have put it aside, or an operator moved it."""
        try:
            named, mine = self._path.stat(), os.fstat(self._fd)
            moved = (named.st_dev, named.st_ino) != (mine.st_dev, mine.st_ino)
        except OSError:
            moved = True
        if moved:
            self.open()

    def _put_aside(self) -> None:
        """FILE becomes FILE.1, and so on. Who does not get the lock leaves it to who has."""
        with contextlib.suppress(OSError):
            lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._path.stat().st_size >= self._bytes_max:  # otherwise someone was faster
                    self._shift()
            finally:
                os.close(lock)

    def _shift(self) -> None:
        for number in range(self._files_max - 2, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                self._aside(number).replace(self._aside(number + 1))
        self._path.replace(self._aside(1))

    def _aside(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
