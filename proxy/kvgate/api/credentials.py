"""What a client shows of itself: a key or token, and finding a key among those that are known.

Nothing here says more than yes or no: no key, no digest, in no message.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from enum import Enum, auto

from kvgate.config.tenants import key_digest

CREDENTIAL_BYTES_MAX = 16 * 1024
"""Of a key or token. Keys have some fifty bytes, tokens with many claims some thousand."""

_BEARER = re.compile(rb"bearer +([\x21-\x7e]+)[ \t]*", re.IGNORECASE)
_KEY = re.compile(rb"([\x21-\x7e]+)[ \t]*")
"""What stands behind a value is not a part of it (RFC 9112, section 5)."""


class Unusable(Enum):
    """Why there is no credential to look at."""

    MISSING = auto()
    MALFORMED = auto()


def bearer_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes | Unusable:
    """The token of `Authorization: Bearer …`."""
    values = [value for name, value in headers if name == b"authorization"]
    if not values:
        return Unusable.MISSING
    found = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    return _bounded(found[1] if found else b"")


def key_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes | Unusable:
    """The API key: of `Authorization: Bearer …`, or else of `x-api-key`, as Anthropic's SDKs send it."""
    headers = list(headers)
    bearer = bearer_of(headers)
    if bearer is not Unusable.MISSING:
        return bearer
    values = [value for name, value in headers if name == b"x-api-key"]
    if not values:
        return Unusable.MISSING
    found = _KEY.fullmatch(values[0]) if len(values) == 1 else None
    return _bounded(found[1] if found else b"")


def _bounded(credential: bytes) -> bytes | Unusable:
    return credential if 0 < len(credential) <= CREDENTIAL_BYTES_MAX else Unusable.MALFORMED


class KeyIndex:
    """Whose key is it? In the same time whatever was sent and however many keys there are.

    The table is by a digest under a secret of this process, which nobody can aim at; so how long a look-up takes
    tells nothing about the keys in it. What is found is compared in constant time.
    """

    def __init__(self, keys: Mapping[bytes, str]) -> None:
        """`keys`: SHA-256 digest of each key, and its tenant."""
        self._secret = secrets.token_bytes(32)
        self._entries = {self._slot(digest): (digest, tenant) for digest, tenant in keys.items()}

    def tenant_of(self, key: bytes) -> str | None:
        digest = key_digest(key)
        stored, tenant = self._entries.get(self._slot(digest), (bytes(32), None))
        return tenant if hmac.compare_digest(stored, digest) else None

    def _slot(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._secret, digest_size=16).digest()
