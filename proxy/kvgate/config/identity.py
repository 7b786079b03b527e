"""How it is found out whose request it is: the rules, and keys by their digests. Pure.

A key is never kept: only its SHA-256 digest is, and that is shown nowhere either, since a short key could be found
from it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Literal

Network = IPv4Network | IPv6Network
Source = Literal["anonymous", "api_key", "header", "jwt"]

JWT_ALGORITHMS = (
    "RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "EdDSA",
)  # fmt: skip
"""Signatures by a private key. The symmetric ones are missing: with a public key set they can be forged."""
JWT_ALGORITHMS_DEFAULT = ("RS256", "ES256")
"""What identity providers sign with unless they are told otherwise."""


@dataclass(frozen=True, slots=True)
class KeyRef:
    """A tenant's key, by digest, and the place in the file that told of it."""

    sha256: str = field(repr=False)
    """In lower-case hex."""
    origin: str

    @property
    def digest(self) -> bytes:
        return bytes.fromhex(self.sha256)


def key_digest(key: bytes) -> bytes:
    """What a client's key is looked up by."""
    return hashlib.sha256(key).digest()


@dataclass(frozen=True, slots=True)
class IdentityRules:
    """How the tenant of a request is found."""

    source: Source = "anonymous"
    """`anonymous`: every request belongs to the one tenant."""
    header: str = ""
    """With source `header`: its name, in lower case; the value is the tenant's name."""
    trusted_proxies: tuple[Network, ...] = ()
    """Peers whose header is believed; from anyone else it is dropped."""
    jwt_claim: str = ""
    """The claim that has the tenant's name."""
    jwt_issuer: str | None = None
    jwt_audience: str | None = None
    jwks_file: Path | None = None
    jwks_url: str | None = None
    jwt_algorithms: tuple[str, ...] = JWT_ALGORITHMS_DEFAULT
    unknown: str | None = None
    """The tenant of requests that belong to no other; None: they are refused."""
