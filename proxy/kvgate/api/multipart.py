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
    if boundary is None:
        return None
    fields: dict[str, str] = {}
    delimiter = b"--" + boundary
    start = body.find(delimiter)
    for _ in range(PARTS_MAX):
        end = body.find(b"\r\n" + delimiter, start + len(delimiter))
        if start < 0 or end < 0:
            break
        _read_part(body, start + len(delimiter), end, fields)
        start = end + 2
    return fields if start >= 0 else None


def _boundary(content_type: str) -> bytes | None:
    if len(content_type) > CONTENT_TYPE_CHARS_MAX:
        return None
    message = Message()
    message["content-type"] = content_type
    if message.get_content_type() != "multipart/form-data":
        return None
    boundary = message.get_boundary()
    return boundary.encode("latin-1", "replace") if boundary else None


def _read_part(body: bytes, start: int, end: int, fields: dict[str, str]) -> None:
    head_end = body.find(b"\r\n\r\n", start, min(end, start + HEAD_BYTES_MAX))
    if head_end < 0 or end - head_end > VALUE_BYTES_MAX:
        return
    head = body[start:head_end]
    name = _NAME.search(head)
    if name is not None and _FILE.search(head) is None:
        value = body[head_end + 4 : end]
        fields[name[1].decode("utf-8", "replace")] = value.decode("utf-8", "replace")
