"""Whose request is it? Decided before its body is read, from what the policy says is to be believed.

* `api_key`: the tenant that the key belongs to; only digests are known.
* `header`: the name that a trusted proxy wrote. From any other peer the header counts as not sent.
* `jwt`: a claim of a token whose signature, lifetime, issuer and audience hold.

Whoever shows nothing, or something that belongs to no tenant, is refused, or is the tenant that the policy has
for such. What can't be read, or a token that does not hold, is refused in any case: that is a mistake of the
client's, which would otherwise go unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

import jwt

from kvgate.admission import Answer, said
from kvgate.api.credentials import KeyIndex, Unusable, bearer_of, key_of
from kvgate.api.jwks import KeySet, KeysUnavailable

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from kvgate.clock import Clock
    from kvgate.config.tenants import IdentityRules, TenantBook

NOBODY = "unknown"
"""In metrics and the log, the tenant of requests whose tenant was not found."""
LEEWAY_S = 30
"""By which the clocks of a token's issuer and this machine may differ."""
_UNREADABLE = (jwt.PyJWTError, ValueError, TypeError, RecursionError)
"""What a token can do to its reader, nested ten thousand deep or not."""

_verifier = jwt.PyJWT({"enforce_minimum_key_length": True})


class Identity:
    """Finds the tenant of a request. What it keeps is worked out from the policy, anew when that changes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._keys: Mapping[bytes, str] = {}
        self._index = KeyIndex({})
        self._key_set: KeySet | None = None

    async def of(self, scope: MutableMapping[str, Any], book: TenantBook) -> str | Answer:
        """The name of a tenant of the book, or the refusal. Waits only for the keys of tokens, within bounds."""
        rules = book.identity
        match rules.source:
            case "anonymous":
                return book.names[0]
            case "api_key":
                return self._by_key(scope["headers"], book)
            case "header":
                return _by_header(scope, book)
            case "jwt":
                return await self._by_token(scope["headers"], book)

    def _by_key(self, headers: Iterable[tuple[bytes, bytes]], book: TenantBook) -> str | Answer:
        key = key_of(headers)
        if key is Unusable.MALFORMED:
            return said.unauthorized("The API key can't be read. Send one key in one header")
        if isinstance(key, Unusable):
            return book.identity.unknown or said.unauthorized("No API key was sent. Send it")
        if book.keys is not self._keys:
            self._keys, self._index = book.keys, KeyIndex(book.keys)
        tenant = self._index.tenant_of(key) or book.identity.unknown
        return tenant or said.unauthorized("The API key is not valid here. Send another one")

    async def _by_token(self, headers: Iterable[tuple[bytes, bytes]], book: TenantBook) -> str | Answer:
        rules = book.identity
        token = bearer_of(headers)
        if token is Unusable.MALFORMED:
            return said.bad_token("can't be read")
        if isinstance(token, Unusable):
            return rules.unknown or said.bad_token("is missing")
        try:
            claims = await self._claims(token, rules)
        except KeysUnavailable:
            return said.keys_unavailable()
        except jwt.ExpiredSignatureError:
            return said.bad_token("has expired")
        except _UNREADABLE:
            return said.bad_token("is not valid here")
        name = claim_of(claims, rules.jwt_claim)
        return _named(name, book) or rules.unknown or said.bad_token("belongs to no tenant")

    async def _claims(self, token: bytes, rules: IdentityRules) -> dict[str, Any]:
        """Raises KeysUnavailable, and one of `_UNREADABLE` for a token that does not hold."""
        head = jwt.get_unverified_header(token)
        algorithm, key_id = head.get("alg"), head.get("kid")
        if algorithm not in rules.jwt_algorithms:
            raise jwt.InvalidAlgorithmError
        key = await self._keys_of(rules).key(key_id, algorithm)
        if key is None:
            raise jwt.InvalidKeyError
        return _verifier.decode(
            token,
            key,
            algorithms=[algorithm],
            audience=rules.jwt_audience,
            issuer=rules.jwt_issuer,
            leeway=LEEWAY_S,
            options={"require": ["exp"], "verify_aud": rules.jwt_audience is not None},
        )

    def _keys_of(self, rules: IdentityRules) -> KeySet:
        source = rules.jwks_file or rules.jwks_url or ""
        if self._key_set is None or self._key_set.source != source:
            self._key_set = KeySet(source, self._clock)
        return self._key_set


def _by_header(scope: MutableMapping[str, Any], book: TenantBook) -> str | Answer:
    rules = book.identity
    wanted = rules.header.encode("latin-1")
    values = [value for name, value in scope["headers"] if name == wanted]
    if not values or not is_trusted(scope.get("client"), rules):
        return rules.unknown or said.no_identity()
    if len(values) > 1:
        return said.no_identity()
    name = values[0].strip(b" \t").decode("latin-1")
    return _named(name, book) or rules.unknown or said.no_identity()


def _named(name: str | None, book: TenantBook) -> str | None:
    """The tenant of that name. Those with a section are looked up; the names of all are a tuple, searched through."""
    return name if name in book.tenants or name in book.names else None


def is_trusted(client: tuple[str, int] | None, rules: IdentityRules) -> bool:
    """Whether the peer of the connection is one of the trusted proxies; what it says of itself does not count."""
    try:
        address = ip_address(client[0]) if client else None
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address is not None and any(address in network for network in rules.trusted_proxies)


def claim_of(claims: Mapping[str, Any], path: str) -> str | None:
    """A claim by its name, or by a path into nested ones (`org.team`); None if it is no text."""
    value: Any = claims
    for name in (path,) if path in claims else path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


__all__ = ["NOBODY", "Identity", "claim_of", "is_trusted"]
