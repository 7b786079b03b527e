"""The settings, put together: command line over environment over policy file over defaults.

Each value is read by the same reader wherever it comes from, and keeps its origin until the end, so that an
error names the option, variable or path that somebody actually wrote.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kvgate.config.given import Given, wrong
from kvgate.config.options import ENV_PREFIX, OPTIONS
from kvgate.config.policy import read_policy, secrets_of, settings_of
from kvgate.config.settings import Settings
from kvgate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvgate.config.options import Option

POLICY_ENV = f"{ENV_PREFIX}POLICY"
LEDGER_PLACE = frozenset({"ledger_url", "pool"})
BEATS_IN_A_LEASE_MIN = 4
"""A beat may be lost or late, and its repetition too, without the lease running out."""


def load(path: Path | None, env: Mapping[str, str], cli: Mapping[str, object]) -> Settings:
    """The effective settings.

    Args:
        path: The policy file, if there is one (see `policy_path`).
        env: The environment; variables beginning with KVGATE_ that name a setting count.
        cli: Values of options by `Option.key`; None means not given.

    Raises:
        ConfigError: A line for each thing that is wrong, with where, what, and what is allowed.
    """
    given = _of_policy(path, env) if path else {}
    given |= _of((o, o.env, env[o.env]) for o in OPTIONS if env.get(o.env))
    given |= _of((o, o.flag, cli[o.key]) for o in OPTIONS if o.flag and cli.get(o.key) is not None)
    settings = effective(given)
    _check_tokenizer(settings, given)
    return settings


def ledger_place(path: Path | None, env: Mapping[str, str], cli: Mapping[str, object]) -> tuple[str, str]:
    """URL of the shared ledger and name of the pool, by the same rules as `load`, which needs more.

    Raises ConfigError, also when they come to a ledger that no one shares.
    """
    options = [option for option in OPTIONS if option.target in LEDGER_PLACE]
    given = settings_of(read_policy(path), str(path)) if path else {}
    given |= _of((o, o.env, env[o.env]) for o in options if env.get(o.env))
    given |= _of((o, o.flag, cli[o.key]) for o in options if cli.get(o.key) is not None)
    settings = effective(
        {"backends": Given("backends", (), "")} | {k: v for k, v in given.items() if k in LEDGER_PLACE}
    )
    if not settings.ledger_shared:
        raise ConfigError(
            "no shared ledger: give --ledger URL, KVGATE_LEDGER, or a policy file with ledger.url"
        )
    return settings.ledger_url, settings.pool


def effective(given: Mapping[str, Given]) -> Settings:
    """The settings of what was given, by target, and the defaults. Raises ConfigError."""
    if "backends" not in given:
        raise ConfigError(
            "no backend: give --backend URL, KVGATE_BACKENDS, or a policy file with pools.NAME.backends"
        )
    settings = _build(given)
    _check_together(settings, given)
    return settings


def policy_path(option: Path | None, env: Mapping[str, str]) -> Path | None:
    """The policy file of `--policy`, or else of KVGATE_POLICY."""
    return option or (Path(env[POLICY_ENV]) if env.get(POLICY_ENV) else None)


def _of_policy(path: Path, env: Mapping[str, str]) -> dict[str, Given]:
    policy = read_policy(path)
    return settings_of(policy, str(path)) | secrets_of(policy, path, env)


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


def _build(given: Mapping[str, Given]) -> Settings:
    values: dict[str, Any] = {}
    for one in given.values():
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


def _check_together(settings: Settings, given: Mapping[str, Given]) -> None:
    """What only two settings together can be wrong about."""
    _check_ledger(settings, given)
    tenant = settings.tenant
    if tenant.max_tokens_cap is not None and (tenant.max_tokens_default or 0) > tenant.max_tokens_cap:
        key = "tenant.max_tokens_default"
        origin = given[key].origin if key in given else "max_tokens default"
        raise ConfigError(
            wrong(origin, tenant.max_tokens_default, f"at most the cap, {tenant.max_tokens_cap}")
        )
    if settings.port and (settings.host, settings.port) == (settings.admin_host, settings.admin_port):
        origin = given["admin_port"].origin if "admin_port" in given else "--admin-port"
        raise ConfigError(wrong(origin, settings.admin_port, "a port that is not the one for clients"))


def _check_ledger(settings: Settings, given: Mapping[str, Given]) -> None:
    if settings.workers > 1 and not settings.ledger_shared:
        raise ConfigError(
            wrong(
                given["workers"].origin,
                settings.workers,
                "1 with the ledger memory://, which each process would have to itself, so that together they "
                "would admit several times what fits; several need a shared one: --ledger redis://HOST:PORT/DB",
            )
        )
    if settings.ledger_shared and not set("{}").isdisjoint(settings.pool):
        raise ConfigError(wrong(given["pool"].origin, settings.pool, "a name without { and }"))
    shortest_s = BEATS_IN_A_LEASE_MIN * settings.ledger_heartbeat_s
    if settings.ledger_lease_s < shortest_s:
        origin = given["ledger_lease_s"].origin if "ledger_lease_s" in given else "lease"
        allowed = f"{BEATS_IN_A_LEASE_MIN} heartbeats or more, {shortest_s:g} s"
        raise ConfigError(wrong(origin, settings.ledger_lease_s, allowed))


def _check_tokenizer(settings: Settings, given: Mapping[str, Given]) -> None:
    """A local tokenizer must be on the machine that serves, not on the one that checks a policy."""
    kind, _, directory = settings.prompt_tokens.partition(":")
    if kind == "local" and not (Path(directory) / "tokenizer.json").is_file():
        origin, value = given["prompt_tokens"].origin, settings.prompt_tokens
        raise ConfigError(wrong(origin, value, f"a directory with a tokenizer.json; {directory} has none"))
