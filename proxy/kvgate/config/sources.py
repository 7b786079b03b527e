"""The settings, put together: command line over environment over policy file over defaults.

Each value is read by the same reader wherever it comes from, and keeps its origin until the end, so that an
error names the option, variable or path that somebody actually wrote. What options and variables say of tenants
replaces the file's `defaults`; a tenant's own section is more special, and wins.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kvgate.config.effects import (
    TENANT,
    book_of,
    defaults_of,
    layers_of_pools,
    pool_settings,
    process_settings,
)
from kvgate.config.given import Given, wrong
from kvgate.config.keyring import Secrets, keys_of
from kvgate.config.layers import OF_POOLS
from kvgate.config.layers import effective as effective_tenant
from kvgate.config.model_file import ALLOWED, model_of
from kvgate.config.options import ENV_PREFIX, OPTIONS
from kvgate.config.patterns import best
from kvgate.config.policy import Policy, read_policy
from kvgate.config.settings import PoolSpec, Settings
from kvgate.config.tenants import anonymous_book
from kvgate.config.together import check_tokenizers, check_traces, checked
from kvgate.errors import ConfigError
from kvgate_policies.types import TenantPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvgate.config.options import Option

POLICY_ENV = f"{ENV_PREFIX}POLICY"
LEDGER_PLACE = frozenset({"ledger_url", "pool"})
OF_ONE_POOL = frozenset(PoolSpec.model_fields) - {"name"} | {"pool"}
"""Settings that say something of one pool."""


def load(path: Path | None, env: Mapping[str, str], cli: Mapping[str, object]) -> Settings:
    """The effective settings.

    Args:
        path: The policy file, if there is one (see `policy_path`).
        env: The environment; variables beginning with KVGATE_ that name a setting count.
        cli: Values of options by `Option.key`; None means not given.

    Raises:
        ConfigError: A line for each thing that is wrong, with where, what, and what is allowed.
    """
    given = _given(OPTIONS, env, cli)
    settings = _of_file(path, given, Secrets(path, env)) if path else effective(given)
    check_tokenizers(settings, path, given)
    check_traces(settings, given)
    return settings


def load_elsewhere(path: Path) -> Settings:
    """What a policy file alone comes to, on a machine that has neither its secrets nor its directories.

    Raises ConfigError.
    """
    return _of_file(path, {}, None)


def ledger_place(path: Path | None, env: Mapping[str, str], cli: Mapping[str, object]) -> tuple[str, str]:
    """URL of the shared ledger and name of the pool, by the same rules as `load`, which needs more.

    Raises ConfigError, also when they come to a ledger that no one shares, or to no pool among several.
    """
    given = _given([option for option in OPTIONS if option.target in LEDGER_PLACE], env, cli)
    if path:
        policy = read_policy(path)
        given = _ledger_of(policy, path, given) | given
    settings = effective({"backends": Given("backends", (), "")} | given)
    if not settings.ledger_shared:
        raise ConfigError(
            "no shared ledger: give --ledger URL, KVGATE_LEDGER, or a policy file with ledger.url"
        )
    return settings.ledger_url, settings.pool


def _ledger_of(policy: Policy, path: Path, given: Mapping[str, Given]) -> dict[str, Given]:
    names = ", ".join(policy.pools)
    chosen = given.get("pool")
    if len(policy.pools) > 1 and chosen is None:
        raise ConfigError(f"{path}: has several pools; choose one with --pool: {names}")
    if len(policy.pools) > 1 and chosen and chosen.value not in policy.pools:
        raise ConfigError(wrong(chosen.origin, chosen.value, f"a pool of {path}: {names}"))
    of_file = process_settings(policy, str(path)) | {"pool": Given("pool", next(iter(policy.pools)), "")}
    return {target: one for target, one in of_file.items() if target in LEDGER_PLACE}


def effective(given: Mapping[str, Given]) -> Settings:
    """The settings of one pool from what was given, by target, and the defaults. Raises ConfigError."""
    return checked(_unchecked(given), given)


def _unchecked(given: Mapping[str, Given]) -> Settings:
    if "backends" not in given:
        raise ConfigError(
            "no backend: give --backend URL, KVGATE_BACKENDS, or a policy file with pools.NAME.backends"
        )
    defaults, pools = defaults_of(given), layers_of_pools([given])
    tenant = effective_tenant(TenantPolicy().name, [*pools.values(), defaults]).policy
    return _build(given, {"tenant": tenant, "book": anonymous_book(tenant, defaults, pools)})


def policy_path(option: Path | None, env: Mapping[str, str]) -> Path | None:
    """The policy file of `--policy`, or else of KVGATE_POLICY."""
    return option or (Path(env[POLICY_ENV]) if env.get(POLICY_ENV) else None)


def _of_file(path: Path, over: Mapping[str, Given], secrets: Secrets | None) -> Settings:
    """The settings of a policy file and of what was given over it."""
    policy, source = read_policy(path), str(path)
    _check_one_pool_meant(policy, source, over)
    pools = [_pool(name, policy, source, secrets) for name in policy.pools]
    given = {**process_settings(policy, source), **pools[0], **over, **_for_every_tenant(over)}
    settings = _unchecked(given)  # what holds by default need not make sense for a tenant that is not there
    layers = layers_of_pools(pools if len(pools) > 1 else [given])
    book = book_of(policy, path, keys_of(policy, source, secrets), defaults_of(given), layers)
    book = replace(settings.book, pools=layers) if book is None else book
    several = tuple(_spec(pool) for pool in pools) if len(pools) > 1 else ()
    return checked(settings.model_copy(update={"book": book, "pools": several}), given)


def _for_every_tenant(over: Mapping[str, Given]) -> dict[str, Given]:
    """What a pool's section may say of all its tenants too, and an option says instead of the file's `defaults`."""
    return {TENANT + key: replace(over[key], target=TENANT + key) for key in OF_POOLS if key in over}


def _pool(name: str, policy: Policy, source: str, secrets: Secrets | None) -> dict[str, Given]:
    """All that the file says of a pool, its secret included if secrets are looked up."""
    section = policy.pools[name]
    given = pool_settings(name, section, source)
    if section.api_key is not None and secrets is not None:
        origin = f"{source}: pools.{name}.api_key"
        secret = secrets.read(section.api_key, origin)
        given["backend_api_key"] = Given("backend_api_key", secret, origin)
    model = _model(
        section.model_config_, Path(source).parent, f"{source}: pools.{name}.model_config", secrets
    )
    if model is not None:
        given["kv_model"] = model
    return given


def _model(value: object, folder: Path, origin: str, secrets: Secrets | None) -> Given | None:
    """The model that a pool's section describes; None for none, and for a file that is not where it is checked."""
    elsewhere = secrets is None and isinstance(value, str) and not _is_there(folder / value)
    if value is None or elsewhere:
        return None
    try:
        return Given("kv_model", model_of(value, folder), origin)
    except ValueError as error:
        shown = value if isinstance(value, str) else "…"
        raise ConfigError(wrong(origin, shown, f"{ALLOWED}; {error}")) from error


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long, a folder that nobody may look into
        return False


def _check_one_pool_meant(policy: Policy, source: str, over: Mapping[str, Given]) -> None:
    """An option or variable about a pool does not say which one it means where there are several; and another
    name for the only one would lead its tenants' sections nowhere.
    """
    misplaced = [one.origin for name, one in over.items() if name in OF_ONE_POOL]
    if len(policy.pools) > 1 and misplaced:
        allowed = f"with several pools it goes into the pool's section of {source}"
        raise ConfigError("\n".join(f"{origin}: {allowed}" for origin in misplaced))
    name, written = over.get("pool"), [t.pools for t in (policy.tenants or {}).values() if t.pools]
    if name and any(best(str(name.value), patterns) is None for patterns in written):
        allowed = f"a name that the tenants' `pools` in {source} mean"
        raise ConfigError(wrong(name.origin, name.value, allowed))


def _spec(given: Mapping[str, Given]) -> PoolSpec:
    values = {"name" if target == "pool" else target: one.value for target, one in given.items()}
    try:
        return PoolSpec.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_refused(given, dict(e)) for e in error.errors())) from error


def _given(options: Sequence[Option], env: Mapping[str, str], cli: Mapping[str, object]) -> dict[str, Given]:
    """What the environment and, over it, the command line say of these options. Raises ConfigError."""
    given = _of((o, o.standard_env, env[o.standard_env]) for o in options if env.get(o.standard_env))
    given |= _of((o, o.env, env[o.env]) for o in options if env.get(o.env))
    return given | _of((o, o.flag, cli[o.key]) for o in options if o.flag and cli.get(o.key) is not None)


def _of(values: Iterable[tuple[Option, str, object]]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    errors: list[str] = []
    for option, origin, value in values:
        try:
            given[option.target] = Given(option.target, option.read(value), origin)
        except ValueError as error:
            errors.append(wrong(origin, "…" if option.secret else value, str(error)))
    if errors:
        raise ConfigError("\n".join(errors))
    return given


def _build(given: Mapping[str, Given], made: Mapping[str, object]) -> Settings:
    values: dict[str, Any] = dict(made)
    for one in given.values():
        if not one.target.startswith(TENANT):
            section, _, name = one.target.rpartition(".")
            (values.setdefault(section, {}) if section else values)[name] = one.value
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_refused(given, dict(e)) for e in error.errors())) from error


def _refused(given: Mapping[str, Given], error: Mapping[str, Any]) -> str:
    target = ".".join(str(part) for part in error["loc"])
    origin = given[target].origin if target in given else target
    return wrong(origin, error["input"], error["msg"])
