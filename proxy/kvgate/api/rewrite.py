"""The only changes that are ever made to a body: the value of its ruling limit, the name of its model, its priority.

The model's, only where a client asked by a name that is the operator's and no engine's; the priority, only where
kvgate decides on it and an engine reads it nowhere else. Every other value keeps
its bytes, numbers as written and escapes included. Equal keys come out as one, the last, as vLLM's own reader
takes them.
"""

from __future__ import annotations

import msgspec

MEMBERS_MAX = 10_000
"""Of the object to write into; an API has about a hundred. Each is taken apart and joined again."""

_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])


def with_max_tokens(body: bytes, field: str, value: int) -> bytes:
    """The body with `field` set to `value`; a dotted field is set inside the object named before the dot.

    For bodies that `parse` accepted. Raises ValueError for one that is no JSON object, has too many members, or
    whose named member is not an object: there is nowhere to write then, and forwarding it unchanged would break
    the reservation.
    """
    outer, _, inner = field.rpartition(".")
    members = _members(body)
    if not outer:
        members[inner] = _raw(value)
        return _join(members)
    nested = _members(bytes(members.get(outer, b"")))
    nested[inner] = _raw(value)
    members[outer] = msgspec.Raw(_join(nested))
    return _join(members)


def with_model(body: bytes, name: str) -> bytes:
    """The body with `model` set to `name`. Raises ValueError as `with_max_tokens`."""
    members = _members(body)
    members["model"] = msgspec.Raw(msgspec.json.encode(name))
    return _join(members)


def with_priority(body: bytes, value: int) -> bytes:
    """The body with `priority` set to `value`. Raises ValueError as `with_max_tokens`."""
    members = _members(body)
    members["priority"] = _raw(value)
    return _join(members)


def _members(data: bytes) -> dict[str, msgspec.Raw]:
    try:
        members = _DECODER.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        msg = f"no JSON object to write into: {error}"
        raise ValueError(msg) from error
    if len(members) > MEMBERS_MAX:
        msg = f"{len(members)} members are too many to write among"
        raise ValueError(msg)
    return members


def _raw(value: int) -> msgspec.Raw:
    return msgspec.Raw(str(value).encode())


def _join(members: dict[str, msgspec.Raw]) -> bytes:
    return (
        b"{" + b",".join(msgspec.json.encode(key) + b":" + bytes(raw) for key, raw in members.items()) + b"}"
    )
