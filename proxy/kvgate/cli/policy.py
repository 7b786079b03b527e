"""`kvgate policy`: what a policy file says, what comes of it, and what may be in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvgate.cli.policy_report import Row, rows_of, table
from kvgate.errors import ConfigError

if TYPE_CHECKING:
    from kvgate.config import Settings

policy_app = typer.Typer(
    help="Policy files.", no_args_is_help=True, epilog="Example: kvgate policy check policy.yaml"
)

File = Annotated[Path, typer.Argument(help="The policy file (YAML).", metavar="FILE")]
NOT_HERE = "not looked at: there is no such file here; kvgate check looks at it, on the host that serves"
"""A policy may be checked on another machine than it runs on."""

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@policy_app.callback()
def root() -> None:
    """Policy files."""


@policy_app.command(epilog="Example: kvgate policy check policy.yaml")
def check(file: File, as_json: AsJson = False) -> int:
    """Say whether a policy file is valid: exit code 0 or 1, with a line for each mistake.

    Secrets it refers to are not read, so that it can be checked where they are not.
    """
    from kvgate.config import warnings_of  # noqa: PLC0415  pydantic takes 100 ms
    from kvgate.config.sources import load_elsewhere  # noqa: PLC0415

    errors: list[str] = []
    warnings: tuple[str, ...] = ()
    models: dict[str, str] = {}
    try:
        settings = load_elsewhere(file)
        warnings, models = warnings_of(settings), _models(settings, file)
    except ConfigError as error:
        errors = str(error).splitlines()
    _print(file, errors, warnings, models, as_json=as_json)
    return 1 if errors else 0


@policy_app.command(epilog="Example: kvgate policy show policy.yaml --tenant chat")
def show(
    file: File,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Only this tenant.", metavar="NAME", show_default=False)
    ] = None,
    pool: Annotated[
        str | None, typer.Option("--pool", help="Only this pool.", metavar="NAME", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Print what holds for each tenant in each pool, and where each value was written.

    It shows the file alone: options, variables and changes at run time are not in it, nor is any key.
    """
    from kvgate.config.sources import load_elsewhere  # noqa: PLC0415

    settings = load_elsewhere(file)
    tenants = _chosen("--tenant", tenant, settings.book.names)
    pools = _chosen("--pool", pool, tuple(spec.name for spec in settings.pool_specs()))
    found = {(t, p): rows_of(settings.book, t, p) for p in pools for t in tenants}
    typer.echo(_as_json(settings, found) if as_json else _as_text(settings, found, str(file)))
    return 0


@policy_app.command(epilog="Example: kvgate policy schema > policy.schema.json")
def schema() -> int:
    """Print the JSON Schema of policy files, with which an editor completes and checks them."""
    from kvgate.config.schema import policy_schema  # noqa: PLC0415

    typer.echo(json.dumps(policy_schema(), indent=2, ensure_ascii=False))
    return 0


def _models(settings: Settings, file: Path) -> dict[str, str]:
    """What was understood of each pool's `model_config`."""
    from kvgate.config.policy import read_policy  # noqa: PLC0415
    from kvgate_policies.model_shape import layers_in_words  # noqa: PLC0415

    understood = {spec.name: spec.kv_model for spec in settings.pool_specs()}
    described = {name for name, pool in read_policy(file).pools.items() if pool.model_config_ is not None}
    return {
        name: NOT_HERE if model is None else layers_in_words(model)
        for name, model in understood.items()
        if name in described
    }


def _chosen(option: str, name: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    if name is not None and name not in known:
        raise ConfigError(f"{option}: {name!r} is not in the file; allowed: {', '.join(known)}")
    return known if name is None else (name,)


def _as_json(settings: Settings, found: dict[tuple[str, str], list[Row]]) -> str:
    effective = [
        {
            "tenant": tenant,
            "pool": pool,
            "values": {row.field: {"value": row.value, "from": row.origin} for row in rows},
        }
        for (tenant, pool), rows in found.items()
    ]
    identity = settings.book.identity
    return json.dumps(
        {"identity": identity.source, "unknown_tenant": identity.unknown or "reject", "effective": effective}
    )


def _as_text(settings: Settings, found: dict[tuple[str, str], list[Row]], file: str) -> str:
    identity = settings.book.identity
    who = f"identity: {identity.source}"
    if identity.source != "anonymous":
        who += f"; unknown tenant: {identity.unknown or 'reject'}"
    parts = [f"tenant {tenant}, pool {pool}\n{table(rows, file)}" for (tenant, pool), rows in found.items()]
    return "\n\n".join((who, *parts))


def _print(
    file: Path, errors: list[str], warnings: tuple[str, ...], models: dict[str, str], *, as_json: bool
) -> None:
    if as_json:
        result = {"file": str(file), "ok": not errors, "errors": errors, "warnings": warnings}
        typer.echo(json.dumps(result | ({"models": models} if models else {})))
        return
    if not errors:
        typer.echo(f"OK: {file}")
    for name, model in models.items():
        typer.echo(f"pool {name}: model_config: {model}")
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    for error in errors:
        typer.echo(f"kvgate: {error}", err=True)
