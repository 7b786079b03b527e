"""A value somebody gave for a setting, where it came from, and how a refusal is worded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvgate.config.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Mapping

SHOWN_CHARS_MAX = 80
"""Of a refused value, in a message."""


@dataclass(frozen=True, slots=True)
class Given:
    target: str
    """Path in `Settings`."""
    value: object
    origin: str
    """`--port`, `KVGATE_PORT`, or `FILE: path.in.the.file`."""


def wrong(origin: str, value: object, allowed: str) -> str:
    """The message about one refused value; a password in a URL is not repeated."""
    shown = redacted(repr(value))
    shown = shown if len(shown) <= SHOWN_CHARS_MAX else f"{shown[:SHOWN_CHARS_MAX]}…"
    return f"{origin}: {shown} is not allowed; allowed: {allowed}"


def refusal(source: str, error: Mapping[str, Any]) -> str:
    """One line for one of pydantic's errors: where, what was there, what is allowed."""
    context = error.get("ctx") or {}
    path = _path(error["loc"])
    match error["type"]:
        case "bad_key":
            return f"{source}: {_path((*error['loc'], context['key']))}: {context['what']}"
        case "missing":
            return f"{source}: {path}: is missing"
        case "secret":
            return f"{source}: {path}: allowed: {error['msg']}"
        case "value_error":
            return wrong(f"{source}: {path}", error["input"], str(context["error"]))
        case _:
            return wrong(f"{source}: {path or 'the document'}", error["input"], str(error["msg"]))


def _path(parts: tuple[object, ...]) -> str:
    """`pools.llama.backends`; a key with characters that would break the line is quoted."""
    names = (str(part) for part in parts)
    return ".".join(name if name.isprintable() else repr(name) for name in names)
