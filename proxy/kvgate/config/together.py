"""What only several settings together can be wrong about."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from kvgate.config.crosschecks import problems
from kvgate.config.given import Given, wrong
from kvgate.errors import ConfigError

if TYPE_CHECKING:
    from kvgate.config.settings import Settings

BEATS_IN_A_LEASE_MIN = 4
"""A beat may be lost or late, and its repetition too, without the lease running out."""


def checked(settings: Settings, given: Mapping[str, Given]) -> Settings:
    """The settings, once what only several of them together can be wrong about is right. Raises ConfigError."""
    _check_ledger(settings, given)
    if wrong_limits := problems(settings.book, settings.pool_specs()):
        raise ConfigError("\n".join(wrong_limits))
    if settings.port and (settings.host, settings.port) == (settings.admin_host, settings.admin_port):
        origin = given["admin_port"].origin if "admin_port" in given else "--admin-port"
        raise ConfigError(wrong(origin, settings.admin_port, "a port that is not the one for clients"))
    return settings


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
    for spec in settings.pool_specs():
        if settings.ledger_shared and not set("{}").isdisjoint(spec.name):
            raise ConfigError(wrong(given["pool"].origin, spec.name, "a name without { and }"))
    shortest_s = BEATS_IN_A_LEASE_MIN * settings.ledger_heartbeat_s
    if settings.ledger_lease_s < shortest_s:
        origin = given["ledger_lease_s"].origin if "ledger_lease_s" in given else "lease"
        allowed = f"{BEATS_IN_A_LEASE_MIN} heartbeats or more, {shortest_s:g} s"
        raise ConfigError(wrong(origin, settings.ledger_lease_s, allowed))


def check_tokenizers(settings: Settings, path: Path | None, given: Mapping[str, Given]) -> None:
    """A local tokenizer must be on the machine that serves, not on the one that checks a policy."""
    for spec in settings.pool_specs():
        kind, _, directory = spec.prompt_tokens.partition(":")
        if kind == "local" and not (Path(directory) / "tokenizer.json").is_file():
            one = given.get("prompt_tokens")
            origin = one.origin if one else f"{path}: pools.{spec.name}.prompt_tokens"
            allowed = f"a directory with a tokenizer.json; {directory} has none"
            raise ConfigError(wrong(origin, spec.prompt_tokens, allowed))


TRACES_NEED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
"""What the extra `otel` installs."""


def check_traces(settings: Settings, given: Mapping[str, Given]) -> None:
    """A machine that is to send traces needs the software that does. Raises ConfigError."""
    if settings.otlp_endpoint is None or all(_is_installed(name) for name in TRACES_NEED):
        return
    origin = given["otlp_endpoint"].origin if "otlp_endpoint" in given else "otlp_endpoint"
    raise ConfigError(
        f"{origin}: traces need OpenTelemetry, which is not installed: pip install 'kvgate[otel]', or unset it"
    )


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # not even the package above it
        return False
