"""What was learned, in a file: for one process alone, over its restarts.

One file for each pool, replaced as a whole, so that there is always a complete one. It is written at the start, at
most once in `SAVE_EVERY_S` if something was learned, and at the end. A file that can't be read or written is a warning,
at the start already: what it had is learned again. One that can't be understood is put aside, under the same name and
`.bad`, and stays there until somebody takes it away: the first is the one that shows how it began. While it is there,
the next ones are put aside as `.bad2`, each in the place of the last: two files at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import anyio
import anyio.to_thread

from kvgate.forecasting.keeping import TEXT_BYTES_MAX, Statements, statements_of, text_of

if TYPE_CHECKING:
    from kvgate_policies.forecast import Lengths

SAVE_EVERY_S = 60.0
"""What is lost by a kill is a minute's learning; what a save takes is some milliseconds."""
SAVE_S_MAX = 2.0
"""For the last save, at the end: a disk that takes longer is not waited for."""
WORDS_CHARS_MAX = 60
"""Of a damaged file in the log: enough to see what it begins with."""

REMEDY = "a restart begins with none; let --state-dir be a directory that this user may write to"

log = logging.getLogger(__name__)


class Stored:
    """Implements `Keeping` in a directory."""

    def __init__(self, directory: str, pool: str, every_s: float = SAVE_EVERY_S) -> None:
        self.path = Path(directory) / f"lengths-{quote(pool, safe='')}.json"
        self._every_s = every_s
        self._saved: str | None = None
        """The text in the file, where it is of this process."""

    @asynccontextmanager
    async def serving(self, lengths: Lengths) -> AsyncGenerator[None]:
        found = await anyio.to_thread.run_sync(self._read)
        if found:
            lengths.restore(found)
            log.info("lengths of answers restored from %s: %d tenants", self.path, len(found) - 1)
        await self._save(lengths)
        saves = asyncio.create_task(self._save_now_and_then(lengths))
        try:
            yield
        finally:
            saves.cancel()
            with anyio.move_on_after(SAVE_S_MAX, shield=True):
                await asyncio.gather(saves, return_exceptions=True)
                await self._save(lengths)

    async def _save_now_and_then(self, lengths: Lengths) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self._save(lengths)

    async def _save(self, lengths: Lengths) -> None:
        text = text_of(lengths.statements())
        if text != self._saved:
            await anyio.to_thread.run_sync(self._write, text, abandon_on_cancel=True)
            self._saved = text

    def _read(self) -> Statements:
        text = b""
        try:
            with self.path.open("rb") as file:
                text = file.read(TEXT_BYTES_MAX + 1)
            return statements_of(text)
        except FileNotFoundError:
            log.info("no lengths of answers in %s yet", self.path)
        except OSError as error:
            log.warning("lengths of answers not restored from %s: %s", self.path, error)
        except ValueError as error:
            self._put_aside(_whose(text) or str(error))
        return {}

    def _put_aside(self, why: str) -> None:
        first = self.path.with_suffix(".bad")
        bad = self.path.with_suffix(".bad2") if first.exists() else first
        log.warning(
            "lengths of answers not restored from %s: %s; it is kept as %s, and they are learned from the beginning",
            self.path,
            why,
            bad.name,
        )
        with contextlib.suppress(OSError):  # then it is written over
            self.path.replace(bad)

    def _write(self, text: str) -> None:
        beside = self.path.with_suffix(f".{os.getpid()}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(text, encoding="ascii")
            beside.replace(self.path)
        except OSError as error:
            log.warning(
                "lengths of answers not kept in %s: %s; %s", self.path, error.strerror or error, REMEDY
            )


def why_unusable(directory: str) -> str | None:
    """Why nothing can be kept there, with what to do; None if it can. Leaves no trace, not even the directory."""
    path = Path(directory)
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return None
    except OSError as error:
        return f"--state-dir: nothing can be kept in {directory}: {error.strerror or error}; {REMEDY}"
    finally:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _whose(text: bytes) -> str:
    """The first statement of a damaged file that is no good, with why; "" where not even that can be told."""
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        if len(text) > TEXT_BYTES_MAX:
            return ""
        found = json.loads(text)
        for name, numbers in found.items():
            try:
                statements_of(json.dumps({name: numbers}))
            except ValueError as error:
                return f"{_short(name)}: {error}: {_short(numbers)}"
    return ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= WORDS_CHARS_MAX else text[: WORDS_CHARS_MAX - 1] + "…"
