"""`kvgate check`: what discovery finds, before anything is served."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvgate.cli.options import settings_from, takes_settings

if TYPE_CHECKING:
    from kvgate.config import Settings
    from kvgate.engines.status import BackendReport


@takes_settings
def check(
    options: dict[str, object],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Look at every backend: what was discovered, from where, and how much fits. Exit code 0 or 1."""
    settings = settings_from(options)
    import asyncio  # noqa: PLC0415
    import json  # noqa: PLC0415
    import logging  # noqa: PLC0415

    from kvgate.cli.findings import Findings, findings_json, print_findings  # noqa: PLC0415
    from kvgate.config import warnings_of  # noqa: PLC0415

    logging.getLogger().addHandler(logging.NullHandler())  # the report says all that the log would
    reports = asyncio.run(_discover(settings))
    findings = Findings(tuple(reports), warnings_of(settings, os.environ))
    if as_json:
        typer.echo(json.dumps(findings_json(findings), indent=2))
    else:
        print_findings(findings, sys.stdout)
    return 0 if findings.ok else 1


async def _discover(settings: Settings) -> list[BackendReport]:
    from kvgate.clock import SystemClock  # noqa: PLC0415
    from kvgate.engines.pool import EnginePool  # noqa: PLC0415
    from kvgate.ledger.memory import MemoryLedger  # noqa: PLC0415

    clock = SystemClock()
    ledger = MemoryLedger(clock, bypass_max=settings.bypass_max)
    return list(await EnginePool(settings, ledger, clock).discover_once())
