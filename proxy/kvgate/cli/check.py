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
    from kvgate.config.reserved import reservations  # noqa: PLC0415

    logging.getLogger().addHandler(logging.NullHandler())  # the report says all that the log would
    found = asyncio.run(_discover(settings))
    ledger, ledger_error = asyncio.run(_look_at_ledger(settings)) if settings.ledger_shared else ("", "")
    findings = Findings(
        tuple(report for reports in found.values() for report in reports),
        warnings_of(settings, os.environ),
        ledger,
        ledger_error,
        {report.url: pool for pool, reports in found.items() for report in reports} if len(found) > 1 else {},
        reservations(settings),
        _of_state_dir(settings),
    )
    if as_json:
        typer.echo(json.dumps(findings_json(findings), indent=2))
    else:
        print_findings(findings, sys.stdout)
    return 0 if findings.ok else 1


def _of_state_dir(settings: Settings) -> str:
    """Why nothing can be kept there; empty if it can, or need not. `serve` begins all the same, with a warning, since a
    volume may come back; whoever checks wants to know before.
    """
    from kvgate.forecasting.stored import why_unusable  # noqa: PLC0415

    if settings.state_dir is None or settings.ledger_shared:
        return ""
    return why_unusable(settings.state_dir) or ""


async def _discover(settings: Settings) -> dict[str, tuple[BackendReport, ...]]:
    """What there is at the backends of each pool, all looked at together."""
    import asyncio  # noqa: PLC0415

    from kvgate.clock import SystemClock  # noqa: PLC0415
    from kvgate.engines.pool import EnginePool  # noqa: PLC0415
    from kvgate.ledger.memory import MemoryLedger  # noqa: PLC0415

    clock = SystemClock()
    pools = {
        spec.name: EnginePool(
            settings.for_pool(spec), MemoryLedger(clock, bypass_max=settings.bypass_max), clock
        )
        for spec in settings.pool_specs()
    }
    reports = await asyncio.gather(*(pool.discover_once() for pool in pools.values()))
    return dict(zip(pools, reports, strict=True))


async def _look_at_ledger(settings: Settings) -> tuple[str, str]:
    """Which Redis it is, or what is wrong with it."""
    from kvgate.errors import ConfigError  # noqa: PLC0415
    from kvgate.ledger.connect import TROUBLE, Connection  # noqa: PLC0415

    connection = Connection(settings.ledger_url)
    try:
        return f"{await connection.check(settings.pool)} at {connection.address}", ""
    except ConfigError as error:
        return "", str(error)
    except TROUBLE as error:
        return "", f"Redis at {connection.address} can't be reached: {error}"
    finally:
        await connection.aclose()
