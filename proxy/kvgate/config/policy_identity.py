"""The parts of a policy file that say who is who: references to secrets, keys, and how a tenant is found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from kvgate.config import schema_values
from kvgate.config.identity import Network
from kvgate.config.section import Section, bad_key, secret
from kvgate.config.values import Algorithms, Text

REF_ALLOWED = "{env: NAME} or {file: PATH}, never the key itself"
KEY_ALLOWED = "{sha256: DIGEST}, {env: NAME} or {file: PATH}, never the key itself"
KEYS_ALLOWED = f"a list of {KEY_ALLOWED}"
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OTHERS_HEADERS = ("authorization", "x-api-key", "host", "cookie", "content-length", "connection")


def _variable(value: object) -> str:
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        raise secret("the name of an environment variable, such as CHAT_KEY")
    return value


def _sha256(value: object) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise secret("the SHA-256 digest of the key, 64 hex digits: printf %s KEY | sha256sum")
    if value.lower() == EMPTY_SHA256:
        raise secret("the digest of a key; this is that of an empty text")
    return value.lower()


def _file(value: object) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise secret("the path of a file")
    return Path(value)


Variable = Annotated[str | None, BeforeValidator(_variable), WithJsonSchema(schema_values.VARIABLE)]
FilePath = Annotated[Path | None, BeforeValidator(_file), WithJsonSchema({"type": "string", "minLength": 1})]


class SecretRef(Section):
    """Where a secret is: never in the file itself."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    env: Variable = None
    """An environment variable."""
    file: FilePath = None
    """A file; a relative path begins at the policy file's directory."""

    @model_validator(mode="before")
    @classmethod
    def no_plain_secret(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):  # not repeated in the message
            raise secret(cls.allowed())
        return data

    @model_validator(mode="after")
    def one_of_them(self) -> Self:
        if sum(getattr(self, name) is not None for name in type(self).model_fields) != 1:
            raise secret(f"one of {self.allowed()}")
        return self

    @classmethod
    def allowed(cls) -> str:
        return REF_ALLOWED


class KeySection(SecretRef):
    """A tenant's key, by its digest or by the place where it is kept."""

    sha256: Annotated[
        str | None,
        BeforeValidator(_sha256),
        WithJsonSchema({"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}),
    ] = None
    """The digest of the key, 64 hex digits: what `printf %s KEY` prints, through `sha256sum`."""

    @classmethod
    def allowed(cls) -> str:
        return KEY_ALLOWED


def _key_list(value: object) -> object:
    if not isinstance(value, list) or not value:
        raise secret(KEYS_ALLOWED)
    return value


Keys = Annotated[tuple[KeySection, ...], BeforeValidator(_key_list), Field(json_schema_extra={"minItems": 1})]


def _source(value: object) -> object:
    if value not in {"api_key", "header", "jwt"}:
        raise ValueError("api_key, header or jwt")
    return value


def _header(value: object) -> str:
    if not isinstance(value, str) or not _HEADER.fullmatch(value):
        raise ValueError("the name of a header, such as x-tenant")
    if value.lower() in _OTHERS_HEADERS:
        raise ValueError("a header of its own, such as x-tenant")
    return value.lower()


def _any_case(names: Iterable[str]) -> str:
    """A pattern for these names in lower and upper case; JSON Schema has no flag for that."""
    letters = ("".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in name) for name in names)
    return "|".join(letters)


def _networks(value: object) -> tuple[Network, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("a list of networks, such as [10.0.0.0/8]")
    return tuple(_network(one) for one in value)


def _network(value: object) -> Network:
    try:
        return ip_network(str(value))
    except ValueError as error:
        raise ValueError(f"networks such as 10.0.0.0/8 or fd00::/8 ({error})") from None


def _jwks_url(value: object) -> str:
    text = value if isinstance(value, str) else ""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    local = parts.scheme == "http" and host in {"localhost", "127.0.0.1", "::1"}
    if not host or not text.isprintable() or not (parts.scheme == "https" or local) or parts.username:
        raise ValueError("a URL such as https://idp.example/keys.json (http:// on this machine only)")
    return text


class Identity(Section):
    """How the tenant of a request is found."""

    source: Annotated[Literal["api_key", "header", "jwt"], BeforeValidator(_source)] = Field(
        default="api_key", alias="from"
    )
    """`api_key`: by the client's key. `header`: by a header that a proxy in front sets. `jwt`: by a claim of a
    signed token (`Authorization: Bearer …`)."""
    name: Annotated[
        str | None,
        BeforeValidator(_header),
        WithJsonSchema(
            {"type": "string", "pattern": f"^(?!({_any_case(_OTHERS_HEADERS)})$){_HEADER.pattern}$"}
        ),
    ] = None
    """With `header`: its name."""
    trusted_proxies: Annotated[
        tuple[Network, ...] | None,
        BeforeValidator(_networks),
        WithJsonSchema({"type": "array", "minItems": 1, "items": schema_values.NETWORK}),
    ] = None
    """With `header`: the networks of the proxies that may set it; from any other peer it is dropped."""
    claim: Text = None
    """With `jwt`: the claim that has the tenant's name; `org.team` is one inside another."""
    jwks_file: FilePath = None
    """With `jwt`: the issuer's public keys, in a file."""
    jwks_url: Annotated[str | None, BeforeValidator(_jwks_url), WithJsonSchema(schema_values.JWKS_URL)] = None
    """With `jwt`: the issuer's public keys, at a URL."""
    issuer: Text = None
    """With `jwt`: what `iss` must be."""
    audience: Text = None
    """With `jwt`: what `aud` must name."""
    algorithms: Algorithms = None
    """With `jwt`: the signatures that are accepted; RS256 and ES256 unless set."""

    @model_validator(mode="after")
    def together(self) -> Self:
        """The keys of one source, all that it needs and none of another."""
        for key in sorted(self.model_fields_set - {"source"}):
            if key not in _OF_SOURCE[self.source]:
                raise bad_key(key, f"belongs to another source than `from: {self.source}`")
        for key in _NEEDED[self.source]:
            if getattr(self, key) is None:
                raise bad_key(key, f"is missing; `from: {self.source}` needs it")
        if self.source == "jwt" and (self.jwks_file is None) == (self.jwks_url is None):
            raise bad_key("jwks_file", "either it or jwks_url is needed, one of them")
        return self


_OF_SOURCE: Mapping[str, frozenset[str]] = {
    "api_key": frozenset(),
    "header": frozenset({"name", "trusted_proxies"}),
    "jwt": frozenset({"claim", "jwks_file", "jwks_url", "issuer", "audience", "algorithms"}),
}
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "api_key": (),
    "header": ("name", "trusted_proxies"),
    "jwt": ("claim",),
}
