"""The form fields of an audio upload: the few short ones that matter, found without copying the file.

A bounded reader of multipart/form-data (RFC 7578): at most `PARTS_MAX` parts, values of at most
`VALUE_BYTES_MAX`; anything larger, as the file, is stepped over.
"""

from __future__ import annotations

import re
from email.message import Message

PARTS_MAX = 64
"""vLLM's form has about 30 fields."""
VALUE_BYTES_MAX = 64 * 1024
"""A prompt of an audio model is a few hundred bytes."""
HEAD_BYTES_MAX = 4096
"""Headers of one part."""
CONTENT_TYPE_CHARS_MAX = 1024
"""A boundary has at most 70 (RFC 2046); Python takes a fifth of a second for the semicolons of a long one."""

_NAME = re.compile(rb'^content-disposition:[^\r\n]*[;\s]name="([^"\r\n]*)"', re.IGNORECASE | re.MULTILINE)
_FILE = re.compile(rb"^content-disposition:[^\r\n]*[;\s]filename\*?=", re.IGNORECASE | re.MULTILINE)


def form_fields(body: bytes, content_type: str) -> dict[str, str] | None:
    """The text fields by name, the last of equal names winning; None if this is no readable form."""
    boundary = _boundary(content_type)
    values = None if boundary is None else _values(body, boundary)
    if values is None:
        return None
    return {name: body[start:end].decode("utf-8", "replace") for name, start, end in values}


def with_field(body: bytes, content_type: str, field: str, value: str) -> bytes:
    """The form with another value of a text field, wherever it stands; every other byte is left alone.

    Raises ValueError when there is no such field.
    """
    boundary = _boundary(content_type)
    values = (_values(body, boundary) or []) if boundary is not None else []
    spans = [(start, end) for name, start, end in values if name == field]
    if not spans:
        raise ValueError(f"the form has no field {field!r}")
    for start, end in reversed(spans):
        body = body[:start] + value.encode() + body[end:]
    return body


def _boundary(content_type: str) -> bytes | None:
    if len(content_type) > CONTENT_TYPE_CHARS_MAX:
        return None
    message = Message()
    message["content-type"] = content_type
    if message.get_content_type() != "multipart/form-data":
        return None
    boundary = message.get_boundary()
    return boundary.encode("latin-1", "replace") if boundary else None


def _values(body: bytes, boundary: bytes) -> list[tuple[str, int, int]] | None:
    """Name of each text field, and where in the body its value begins and ends; None if this is no form."""
    delimiter = b"--" + boundary
    start = body.find(delimiter)
    if start < 0:
        return None
    found: list[tuple[str, int, int]] = []
    for _ in range(PARTS_MAX):
        end = body.find(b"\r\n" + delimiter, start + len(delimiter))
        if end < 0:
            break
        value = _text_part(body, start + len(delimiter), end)
        if value is not None:
            found.append((*value, end))
        start = end + 2
    return found


def _text_part(body: bytes, start: int, end: int) -> tuple[str, int] | None:
    """The name of a part and where its value begins; None for a file and for what is too large."""
    head_end = body.find(b"\r\n\r\n", start, min(end, start + HEAD_BYTES_MAX))
    if head_end < 0 or end - head_end > VALUE_BYTES_MAX:
        return None
    head = body[start:head_end]
    name = _NAME.search(head)
    if name is None or _FILE.search(head) is not None:
        return None
    return name[1].decode("utf-8", "replace"), head_end + 4
