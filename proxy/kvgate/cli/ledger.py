"""`kvgate ledger`: look into the ledger that processes share, and put it right."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from kvgate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kvgate.cli.ledger_report import Report
    from kvgate.ledger.connect import Client
    from kvgate.ledger.scripts import LedgerScripts

T = TypeVar("T")

POOLS_SHOWN_MAX = 20

ledger_app = typer.Typer(
    help="The ledger that processes share.",
    no_args_is_help=True,
    epilog="Example: kvgate ledger show --ledger redis://127.0.0.1:6379/0 --pool llama-70b",
)

Policy = Annotated[
    Path | None, typer.Option("--policy", metavar="FILE", help="The policy file that names both.")
]
Url = Annotated[
    str | None, typer.Option("--ledger", metavar="URL", help="As for `kvgate serve`; or KVGATE_LEDGER.")
]
Pool = Annotated[
    str | None, typer.Option("--pool", metavar="NAME", help="As for `kvgate serve`; or KVGATE_POOL.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@ledger_app.callback()
def root() -> None:
    """The ledger that processes share."""


@ledger_app.command(epilog="Example: kvgate ledger show --ledger redis://127.0.0.1:6379/0 --pool llama-70b")
def show(policy: Policy = None, ledger: Url = None, pool: Pool = None, as_json: AsJson = False) -> int:
    """Engines and what is reserved there, processes and what they hold, and the head of the queue."""
    from kvgate.cli.ledger_report import print_report, report_json  # noqa: PLC0415

    report = _ask(policy, ledger, pool, _report)
    if as_json:
        typer.echo(json.dumps(report_json(report), indent=2))
    else:
        print_report(report, sys.stdout)
    return 0


@ledger_app.command(epilog="Example: kvgate ledger verify --ledger redis://127.0.0.1:6379/0 --pool llama-70b")
def verify(policy: Policy = None, ledger: Url = None, pool: Pool = None, as_json: AsJson = False) -> int:
    """Check everything that must hold in the ledger at every moment. Exit code 0 or 1."""
    broken = _ask(policy, ledger, pool, _verify)
    if as_json:
        typer.echo(json.dumps({"ok": not broken, "broken": broken}))
    elif not broken:
        typer.echo("OK: all invariants hold")
    else:
        for line in broken:
            typer.echo(f"broken: {line}")
    return 1 if broken else 0


@ledger_app.command(epilog="Example: kvgate ledger reap --pool llama-70b --yes")
def reap(
    policy: Policy = None,
    ledger: Url = None,
    pool: Pool = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, only say what would be done.")] = False,
    as_json: AsJson = False,
) -> int:
    """Take processes whose lease ran out for gone: their requests leave the queue at once, and what they hold is
    counted until the engine's own gauge shows it free. Processes that live do the same by and by.

    Exit code 1 when there is something to do and --yes is missing.
    """
    if yes:
        reaped = _ask(policy, ledger, pool, _reap)
        _say_reaped(reaped, as_json=as_json)
        return 0
    expired = _ask(policy, ledger, pool, _expired)
    if as_json:
        typer.echo(json.dumps({"expired": expired}))
    elif not expired:
        typer.echo("nothing to do: every process has a lease")
    for pid, holds in () if as_json else expired.items():
        where = f"room on {', '.join(holds)}" if holds else "nothing"
        typer.echo(f"{pid}: the lease ran out; it holds {where}")
    if expired and not as_json:
        typer.echo("Nothing was done; --yes does it.", err=True)
    return 1 if expired else 0


def _say_reaped(pids: list[str], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"reaped": pids}))
    else:
        typer.echo("\n".join(f"{pid}: gone" for pid in pids) or "nothing to do: every process has a lease")


async def _report(client: Client, pool: str) -> Report:
    from kvgate.cli.ledger_report import Report  # noqa: PLC0415

    scripts = _scripts(client, pool)
    return Report(pool, await scripts.view(), await scripts.inspect())


async def _verify(client: Client, pool: str) -> list[str]:
    return await _scripts(client, pool).verify()


async def _reap(client: Client, pool: str) -> list[str]:
    return await _scripts(client, pool).reap()


async def _expired(client: Client, pool: str) -> dict[str, list[str]]:
    from kvgate.ledger.expired import expired  # noqa: PLC0415

    return await expired(client, pool)


def _scripts(client: Client, pool: str) -> LedgerScripts:
    from kvgate.ledger.scripts import LedgerScripts  # noqa: PLC0415

    return LedgerScripts(client, pool)


def _ask(
    policy: Path | None,
    ledger: str | None,
    pool: str | None,
    question: Callable[[Client, str], Awaitable[T]],
) -> T:
    """The answer of the ledger that the options name. Raises ConfigError, also when it can't be asked."""
    import asyncio  # noqa: PLC0415

    from kvgate.config.sources import ledger_place, policy_path  # noqa: PLC0415

    path = policy_path(policy, os.environ)
    url, name = ledger_place(path, os.environ, {"ledger": ledger, "pool": pool})
    return asyncio.run(_asked(url, name, question))


async def _asked(url: str, pool: str, question: Callable[[Client, str], Awaitable[T]]) -> T:
    from kvgate.ledger.connect import TROUBLE, Connection  # noqa: PLC0415

    connection = Connection(url)
    try:
        await _must_exist(connection.calls, pool, str(connection.address))
        return await question(connection.calls, pool)
    except TROUBLE as error:
        raise ConfigError(f"the ledger at {connection.address} can't be asked: {error}") from error
    finally:
        await connection.aclose()


async def _must_exist(client: Client, pool: str, address: str) -> None:
    """Asking about a pool that is not there would make it. Raises ConfigError with those that are."""
    from kvgate.ledger.keys import keys_of  # noqa: PLC0415

    meta = keys_of(pool)[0]
    if await client.exists(meta):
        return
    start, _, end = meta.partition(pool)
    there: list[str] = []
    async for key in client.scan_iter(match=f"{start}*{end}", count=1000):
        there.append(key.decode().removeprefix(start).removesuffix(end))
        if len(there) >= POOLS_SHOWN_MAX:
            break
    known = f"; there are: {', '.join(sorted(there))}" if there else ""
    raise ConfigError(f"no process has used a ledger for the pool {pool!r} at {address} (--pool){known}")
