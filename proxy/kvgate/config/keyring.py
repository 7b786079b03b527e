"""Reading the secrets that a policy file refers to: from the environment, or from a file beside it.

Promises: a secret is in no message; only a tenant's digests leave this module, the keys do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kvgate.config.identity import KeyRef, key_digest
from kvgate.errors import ConfigError

if TYPE_CHECKING:
    from kvgate.config.policy import Policy
    from kvgate.config.policy_identity import KeySection, SecretRef

SECRET_BYTES_MAX = 64 * 1024
"""A key is a line; more is another file, given by mistake."""


class Secrets:
    """Where secrets are looked up: beside the policy file, and in an environment."""

    def __init__(self, policy_file: Path, env: Mapping[str, str]) -> None:
        self._directory = policy_file.parent
        self._env = env

    def read(self, ref: SecretRef, origin: str) -> str:
        """The secret, without white space around it. Raises ConfigError, also for an empty one."""
        if ref.file is None:
            value, place = self._env.get(ref.env or "", "").strip(), f"the environment variable {ref.env}"
        else:
            path = self._directory / ref.file
            value, place = _text(path, origin), f"the file {path}"
        if not value:
            raise ConfigError(f"{origin}: {place} is empty or not set")
        return value

    def key(self, ref: KeySection, origin: str) -> KeyRef:
        """A tenant's key, by digest. Raises ConfigError for one that no client could send."""
        if ref.sha256 is not None:
            return KeyRef(ref.sha256, origin)
        key = self.read(ref, origin)
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ConfigError(f"{origin}: what is kept there is no key; allowed: ASCII text without spaces")
        return KeyRef(key_digest(key.encode()).hex(), origin)


def _text(path: Path, origin: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(SECRET_BYTES_MAX + 1)
        if len(data) > SECRET_BYTES_MAX:
            raise ConfigError(f"{origin}: the file {path} is larger than {SECRET_BYTES_MAX} bytes")
        return data.decode().strip()
    except OSError as error:
        raise ConfigError(f"{origin}: the file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{origin}: the file {path} cannot be read: it is no text") from None


def keys_of(policy: Policy, source: str, secrets: Secrets | None) -> dict[bytes, str]:
    """Digest → tenant. Without `secrets` only the digests that the file itself has. Raises ConfigError."""
    owner: dict[bytes, KeyRef] = {}
    keys: dict[bytes, str] = {}
    errors: list[str] = []
    for tenant, origin, section in _sections(policy, source):
        if secrets is None and section.sha256 is None:
            continue
        try:
            ref = _only(secrets, section, origin)
        except ConfigError as error:
            errors.append(str(error))
            continue
        if ref.digest in owner:
            errors.append(f"{origin}: is the key of {owner[ref.digest].origin} too; allowed: each key once")
        owner.setdefault(ref.digest, ref)
        keys.setdefault(ref.digest, tenant)
    if errors:
        raise ConfigError("\n".join(errors))
    return keys


def _only(secrets: Secrets | None, section: KeySection, origin: str) -> KeyRef:
    if secrets is None:
        return KeyRef(section.sha256 or "", origin)
    return secrets.key(section, origin)


def _sections(policy: Policy, source: str) -> Iterator[tuple[str, str, KeySection]]:
    for name, tenant in (policy.tenants or {}).items():
        for index, section in enumerate(tenant.keys):
            yield name, f"{source}: tenants.{name}.keys.{index}", section
