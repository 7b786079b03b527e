"""Which headers go to the engine, and which come back to the client.

Every header passes unless it is named here: an allow-list would break tracing and custom routing. What is
stripped belongs to one connection, is decided by kvgate, or would let a client pass for someone else.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvgate.admission import Header

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""RFC 9110, section 7.6.1, with what `Connection` names."""

CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"api-key", b"cookie"})
"""The client's own, for kvgate; the engine gets the pool's key where there is one."""

_DECIDED_HERE = frozenset(
    {
        b"host",  # the transport sets it from the URL
        b"content-length",  # counted again, since the body may have been rewritten
        b"expect",  # answered by kvgate's own server
        b"accept-encoding",  # see `request_headers`
        b"x-request-id",
        b"x-data-parallel-rank",  # which engine runs a request is the ledger's decision
    }
)
_OWN_PREFIX = b"x-kvgate-"
"""Kvgate's own words: from a client a claim to be someone, from an engine a forgery."""

_OF_THE_CONNECTION_TO_US = frozenset({b"date", b"server", b"x-request-id"})
"""Of the engine's answer. kvgate's server writes its own date; the engine's product is no one's business; the
request id is the one that kvgate gave."""

_NOT_TO_THE_ENGINE = HOP_BY_HOP | _DECIDED_HERE
_NEITHER_THAT_NOR_KEYS = _NOT_TO_THE_ENGINE | CREDENTIALS
_NOT_TO_THE_CLIENT = HOP_BY_HOP | _OF_THE_CONNECTION_TO_US

REQUEST_ID_CHARS_MAX = 128
_REQUEST_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:-]{{0,{REQUEST_ID_CHARS_MAX - 1}}}")


def clean_request_id(value: str | bytes | None) -> str:
    """The client's request id if it is safe in logs, headers and vLLM's response ids; else a new one.

    Letters, digits and `._:-`, at most 128 of them: vLLM puts it into ids that come back in a URL.
    """
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if text is not None and _REQUEST_ID.fullmatch(text):
        return text
    return secrets.token_hex(16)


def request_headers(
    headers: Iterable[Header], request_id: str, *, strip_credentials: bool, identity_header: str = ""
) -> list[Header]:
    """The headers for an engine; `host`, `content-length` and what the target asks for are added later.

    `strip_credentials`: with tenants configured, or when the pool has a key of its own. `identity_header`: by
    which tenants are told, whoever wrote it; it is a word to kvgate, and a claim that anyone can make. The
    answer is asked for unencoded: a compressed one could not be read beside the stream, and engines are on the
    same network.
    """
    drop = _NEITHER_THAT_NOR_KEYS if strip_credentials else _NOT_TO_THE_ENGINE
    if identity_header:
        drop |= {identity_header.encode("latin-1")}
    own = [(b"accept-encoding", b"identity"), (b"x-request-id", request_id.encode())]
    return _without(headers, drop) + own


def response_headers(headers: Iterable[Header], *, body_unchanged: bool = True) -> list[Header]:
    """The engine's headers for the client.

    `body_unchanged`: whether exactly the engine's bytes follow, so that its `content-length` still holds.
    """
    drop = _NOT_TO_THE_CLIENT if body_unchanged else _NOT_TO_THE_CLIENT | {b"content-length"}
    return _without(headers, drop)


def _without(headers: Iterable[Header], drop: frozenset[bytes]) -> list[Header]:
    """Lower-cased, without those to drop, those that `Connection` names, and kvgate's own."""
    lowered = [(name.lower(), value) for name, value in headers]
    options = [value for name, value in lowered if name == b"connection"]
    if options:
        drop |= {token.strip().lower() for value in options for token in value.split(b",")}
    own = len(_OWN_PREFIX)
    return [header for header in lowered if header[0] not in drop and header[0][:own] != _OWN_PREFIX]
