"""`kvgate calibrate`: how long a step of an engine takes, as a profile for the simulator."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvgate.cli.load_words import check_writable, write
from kvgate.errors import ConfigError

if TYPE_CHECKING:
    from kvgate.load.calibration import Room
    from kvgate.load.fit import Fit

EXIT_INTERRUPTED = 130


def calibrate(
    url: Annotated[str, typer.Argument(metavar="URL", help="A vLLM server that nobody else uses meanwhile.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write a profile for `kvgate sim-engine --profile FILE`."),
    ] = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Of the profile.")] = "calibrated",
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Default: the first one that it has")
    ] = None,
    batch_max: Annotated[
        int, typer.Option("--batch-max", metavar="N", min=2, max=32, help="Sessions at once, at most.")
    ] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Measure how long an engine's steps take, by a minute of small probes."""
    import asyncio  # noqa: PLC0415

    from kvgate.load.calibration_report import fit_json, print_fit  # noqa: PLC0415  aiohttp, rich
    from kvgate.load.target import base_url  # noqa: PLC0415
    from kvgate.sim.profiles import profile_text  # noqa: PLC0415

    _check(out, name)
    try:
        room, found = asyncio.run(_measured(base_url("URL", url), model, batch_max))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if as_json:
        typer.echo(json.dumps({"url": room.url, "model": room.model, **fit_json(found)}, indent=2))
    else:
        print_fit(found, sys.stdout)
    if out is not None:
        write("--out", out, profile_text(found.profile(name, _source(room, found))))
        if not as_json:
            typer.echo(f"\nWritten to {out}.")
    return 0


async def _measured(url: str, model: str | None, batch_max: int) -> tuple[Room, Fit]:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    from kvgate.load.calibration import measure, plan, room_of  # noqa: PLC0415
    from kvgate.load.fit import fit  # noqa: PLC0415

    room = await room_of(url, model)
    probing = plan(room, batch_max)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("measuring", total=probing.count)
        seen = await measure(room, probing, lambda: bar.advance(task))
    try:
        return room, fit(seen)
    except ValueError as error:
        raise ConfigError(f"{url}: {error}: the engine is too fast, or this machine too slow") from error


def _source(room: Room, found: Fit) -> str:
    now = datetime.now(UTC).strftime("%Y-%m-%d")
    return (
        f"Fitted by kvgate calibrate on {now} to {room.model!r} at {room.url}: half of {len(found.observations)} "
        f"observations within {found.off_median:.1%}, all within {found.off_max:.1%}."
    )


def _check(out: Path | None, name: str) -> None:
    """Before the load and not after it. Raises ConfigError."""
    if not name or not name.isprintable() or ":" in name or len(name) > 100:
        raise ConfigError(f"--name: {name!r} is not allowed; allowed: a printable name without a colon")
    if out is None:
        return
    if out.suffix not in {".yaml", ".yml"}:
        raise ConfigError(f"--out: {out} is not allowed; allowed: a file that ends in .yaml")
    check_writable("--out", out)
