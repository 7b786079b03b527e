"""`kvgate policy`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kvgate.errors import ConfigError

policy_app = typer.Typer(
    help="Policy files.", no_args_is_help=True, epilog="Example: kvgate policy check policy.yaml"
)


@policy_app.callback()
def root() -> None:
    """Policy files."""


@policy_app.command(epilog="Example: kvgate policy check policy.yaml")
def check(
    file: Annotated[Path, typer.Argument(help="The policy file (YAML).", metavar="FILE")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Say whether a policy file is valid: exit code 0 or 1, with a line for each mistake.

    Secrets it refers to are not read, so that it can be checked where they are not.
    """
    from kvgate.config.advice import warnings_of  # noqa: PLC0415
    from kvgate.config.policy import read_policy, settings_of  # noqa: PLC0415
    from kvgate.config.sources import effective  # noqa: PLC0415

    errors: list[str] = []
    warnings: tuple[str, ...] = ()
    try:
        warnings = warnings_of(effective(settings_of(read_policy(file), str(file))))
    except ConfigError as error:
        errors = str(error).splitlines()
    _print(file, errors, warnings, as_json=as_json)
    return 1 if errors else 0


def _print(file: Path, errors: list[str], warnings: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        result = {"file": str(file), "ok": not errors, "errors": errors, "warnings": warnings}
        typer.echo(json.dumps(result))
        return
    if not errors:
        typer.echo(f"OK: {file}")
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    for error in errors:
        typer.echo(f"kvgate: {error}", err=True)
