"""Bytes to server-sent events (WHATWG HTML, section 9.2.6), incrementally and whatever the chunk borders.

The usual chunk is one or more whole events that end with an empty line, and costs one `split`. Streams with
carriage returns take a regular expression instead: JSON escapes them, so one in the bytes is a line end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CR, LF = b"\r\n"
"""As numbers: looking for a byte takes a sixth of the time that looking for bytes of length one does."""
EVENT_BYTES_MAX = 1 << 20
"""Bytes kept of an event that has not ended: far more than one token with 20 logprobs, and the most that a
broken stream can make us hold."""

_LINE_END = rb"(?>\r\n|\r|\n)"
_BLANK_LINE = re.compile(_LINE_END + _LINE_END)
_BLANK_AT_END = (b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n")


class Framing:
    """Cuts a stream into events. Blind once a single event outgrew `EVENT_BYTES_MAX`: then nothing is cut."""

    __slots__ = ("_carriage", "_last", "_pending", "blind")

    def __init__(self) -> None:
        self.blind = False
        self._carriage = False
        self._pending = bytearray()
        self._last = b""

    @property
    def at_boundary(self) -> bool:
        """Whether the last bytes ended an event, so that another one may start here."""
        if self.blind:
            return self._last.endswith(_BLANK_AT_END)
        return not self._pending.strip(b"\r\n")

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        """The events that ended in this chunk, without their empty line; may contain empty ones."""
        if (
            chunk[-2:] == b"\n\n"
            and chunk[-3:] != b"\n\n\n"
            and CR not in chunk
            and not (self._pending or self._carriage or self.blind)
        ):
            return chunk[:-2].split(b"\n\n")  # the usual chunk: whole events
        if self.blind:
            self._last = (self._last + chunk)[-4:]
            return ()
        if not self._carriage and CR in chunk:
            self._carriage = True
        if not self._pending:
            events = self._split(chunk)
            self._keep(events.pop())
            return events
        return self._feed_pending(chunk)

    def end(self) -> bytes:
        """The stream is over: what is left of an event that has no empty line behind it."""
        rest = bytes(self._pending)
        self._pending.clear()
        return rest

    def _feed_pending(self, chunk: bytes) -> Sequence[bytes]:
        search_from = max(0, len(self._pending) - 3)
        self._pending += chunk
        if not self._has_blank_line(search_from):
            self._bound()
            return ()
        events = self._split(bytes(self._pending))
        self._pending.clear()
        self._keep(events.pop())
        return events

    def _split(self, data: bytes) -> list[bytes]:
        return _BLANK_LINE.split(data) if self._carriage else data.split(b"\n\n")

    def _has_blank_line(self, search_from: int) -> bool:
        if self._carriage:
            return _BLANK_LINE.search(self._pending, search_from) is not None
        return self._pending.find(b"\n\n", search_from) >= 0

    def _keep(self, rest: bytes) -> None:
        if rest:
            self._pending += rest
            self._bound()

    def _bound(self) -> None:
        if len(self._pending) > EVENT_BYTES_MAX:
            self.blind = True
            self._last = bytes(self._pending[-4:])
            self._pending = bytearray()


def name_and_data(event: bytes) -> tuple[bytes, bytes | None]:
    """The event's name (empty if it has none) and its data (None if it has none, as a comment)."""
    name = b""
    data: list[bytes] = []
    for line in event.splitlines():
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return name, b"\n".join(data) if data else None
