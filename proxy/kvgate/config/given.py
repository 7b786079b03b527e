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
    shown = redacted(_in_words(value))
    shown = shown if len(shown) <= SHOWN_CHARS_MAX else f"{shown[:SHOWN_CHARS_MAX]}…"
    return f"{origin}: {shown} is not allowed; allowed: {allowed}"


def _in_words(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # Python writes no whole number of more than 4300 digits
        return "a number of thousands of digits"


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
            return wrong(f"{source}: {path}", _shown(error), str(context["error"]))
        case _:
            return wrong(f"{source}: {path or 'the document'}", _shown(error), str(error["msg"]))


class _Hidden:
    """Stands for a value that is not repeated."""

    def __repr__(self) -> str:
        return "what is there"


def _shown(error: Mapping[str, Any]) -> object:
    """The refused value; of a tenant's section nothing that could hold a key is repeated."""
    value = error["input"]
    in_tenant = error["loc"][:1] == ("tenants",) and error["type"] == "not_a_section"
    return _Hidden() if in_tenant and isinstance(value, str | list | dict) else value


def _path(parts: tuple[object, ...]) -> str:
    """`pools.llama.backends`; a key with characters that would break the line is quoted."""
    names = (str(part) for part in parts if part != "[key]")
    return ".".join(name if name.isprintable() else repr(name) for name in names)
