"""The policy file from outside: which one is in force, when it changed, and what of a new one is taken over."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from kvgate.config.document import BYTES_MAX
from kvgate.config.policy import read_policy
from kvgate.config.settings import PoolSpec, Settings
from kvgate.config.tenants import TenantBook
from kvgate.errors import ConfigError

DIGEST_CHARS = 12
"""Of the file's SHA-256: enough to see whether two replicas have the same file."""

LIVE = frozenset({"pools", "pool", "aliases", "backends", "reservation", "risk", "tenant", "book"})
"""Of the settings: taken over while running, or compared pool by pool."""
LIVE_IN_POOL = frozenset({"name", "aliases", "backends", "reservation", "risk"})
"""What a pool says of all its tenants is in force through the book."""
IN_FILE = {
    "bypass_max": "bypass",
    "ledger_url": "ledger.url",
    "ledger_lease_s": "ledger.lease",
    "ledger_on_failure": "ledger.on_failure",
    "prefill_tokens_max": "prefill_tokens",
    "backend_api_key": "api_key",
    "kv_model": "model_config",
}
"""Settings that have another name in the file: the environment and the command line can't change while it runs."""
NAMES_SHOWN_MAX = 10
IN_POOL = tuple(name for name in PoolSpec.model_fields if name not in LIVE_IN_POOL)

Stamp = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class PolicySource:
    """Where the settings come from, to be read again. Made before they are read for the first time."""

    read: Callable[[], Settings]
    """Raises ConfigError."""
    path: Path | None = None
    """The policy file, if there is one."""
    first: Stamp = field(init=False, default=None)
    """The file's stamp when this was made."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", self.stamp())

    @property
    def name(self) -> str | None:
        return None if self.path is None else str(self.path)

    def stamp(self) -> Stamp:
        """Changes when the file does; None without one, and for one that is not there."""
        try:
            seen = None if self.path is None else self.path.stat()
        except OSError:
            return None
        return None if seen is None else (seen.st_mtime_ns, seen.st_size, seen.st_ino)

    def digest(self) -> str | None:
        """Of the file's content; None without one, and for one that can't be read."""
        if self.path is None or not self.path.is_file():
            return None
        try:
            with self.path.open("rb") as file:
                return hashlib.sha256(file.read(BYTES_MAX + 1)).hexdigest()[:DIGEST_CHARS]
        except OSError:
            return None

    def read_again(self) -> Settings:
        """As `read`, but nothing whose reading could wait for ever: a pipe has no end, and is empty once read.

        Raises ConfigError.
        """
        if self.path is not None and self.path.exists() and not (self.path.is_file() or self.path.is_dir()):
            raise ConfigError(f"{self.path}: cannot be read: it is a pipe or a device, not a file")
        return self.read()

    def files(self) -> tuple[Path, ...]:
        """The policy file, and those that it takes secrets from: a key that is replaced is a change of the policy."""
        if self.path is None:
            return ()
        if not self.path.is_file():
            return (self.path,)
        try:
            return (self.path, *_secret_files(self.path))
        except ConfigError:
            return (self.path,)


def _secret_files(path: Path) -> Iterator[Path]:
    policy = read_policy(path)
    keys = [key for tenant in (policy.tenants or {}).values() for key in tenant.keys]
    pools = [pool.api_key for pool in policy.pools.values() if pool.api_key is not None]
    named = [ref.file for ref in (*keys, *pools) if ref.file is not None]
    yield from sorted({path.parent / file for file in named})


@dataclass(frozen=True, slots=True)
class FileState:
    """Which file is in force, and what is wrong with the one on the disk."""

    path: str | None = None
    digest: str | None = None
    taken_at: str = ""
    """ISO 8601, UTC."""
    refused: str | None = None
    """Why the file on the disk is not in force; None while it is."""


def taken(source: PolicySource | None, digest: str | None) -> FileState:
    """The state right after a file was taken over."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return FileState(None if source is None else source.name, digest, now)


def taken_over(running: Settings, wanted: Settings) -> Settings:
    """What a running process has, once it took over all that it can of new settings. Pure."""
    after = {spec.name: spec for spec in wanted.pool_specs()}
    flat = after.get(running.pool_specs()[0].name)
    live = {
        "book": wanted.book,
        "tenant": wanted.tenant,
        "pools": tuple(_pool(s, after) for s in running.pools),
    }
    if flat is not None:
        live |= {name: getattr(flat, name) for name in LIVE_IN_POOL - {"name"}}
    return running.model_copy(update=live)


def _pool(spec: PoolSpec, after: dict[str, PoolSpec]) -> PoolSpec:
    wanted = after.get(spec.name, spec)
    return spec.model_copy(update={name: getattr(wanted, name) for name in LIVE_IN_POOL})


def needs_restart(running: Settings, wanted: Settings) -> list[str]:
    """What differs and is not taken over: `port`, `pools.llama.max_num_seqs` (`max_num_seqs` with one pool),
    `pools.new (added)`. Pure, sorted.
    """
    before = {spec.name: spec for spec in running.pool_specs()}
    after = {spec.name: spec for spec in wanted.pool_specs()}
    skipped = LIVE.union(IN_POOL)
    names = (name for name in type(wanted).model_fields if name not in skipped)
    differs = [IN_FILE.get(name, name) for name in names if getattr(running, name) != getattr(wanted, name)]
    differs += [f"pools.{name} (added)" for name in after if name not in before]
    differs += [f"pools.{name} (removed)" for name in before if name not in after]
    for name in (name for name in before if name in after):
        fields = (
            IN_FILE.get(one, one)
            for one in IN_POOL
            if getattr(before[name], one) != getattr(after[name], one)
        )
        differs += [f"pools.{name}.{field}" if len(before) > 1 else field for field in fields]
    return sorted(differs)


def tenants_changed(before: TenantBook, after: TenantBook) -> list[str]:
    """What a new file says differently of tenants, in words; never a key, nor what it is known by. Pure."""
    old, new = dict.fromkeys(before.names), dict.fromkeys(after.names)
    keys = {name for _, name in before.keys.items() ^ after.keys.items()}
    changed = [name for name in new if name in old and before.tenants.get(name) != after.tenants.get(name)]
    said = _named("added", [name for name in new if name not in old])
    said += _named("removed", [name for name in old if name not in new])
    said += _named("changed", changed)
    said += _named("keys of", [name for name in new if name in old and name in keys])
    said += ["defaults"] if (before.defaults, before.pools) != (after.defaults, after.pools) else []
    return said + (["identity"] if before.identity != after.identity else [])


def _named(what: str, names: list[str]) -> list[str]:
    shown = ", ".join(names[:NAMES_SHOWN_MAX])
    more = len(names) - NAMES_SHOWN_MAX
    return [f"{what} {shown}" + (f" and {more:,} more" if more > 0 else "")] if names else []
