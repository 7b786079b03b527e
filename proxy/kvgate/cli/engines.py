"""`kvgate engines`: how they are, and taking them out of service and back."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvgate.cli.admin_port import (
    Admin,
    AdminPort,
    AsJson,
    InPool,
    TokenFile,
    only_alone,
    print_json,
    show,
    table,
)

engines_app = typer.Typer(
    help="Engines of a running kvgate: how they are, and taking them out of service and back.",
    epilog="Example: kvgate engines drain http://gpu-a:8000",
)

EngineId = Annotated[
    str, typer.Argument(metavar="ID", help="As `kvgate engines` shows it; a URL means all engines behind it.")
]


@engines_app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    pool: InPool = None,
    admin: Admin = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> int:
    """Engines of a running kvgate: how they are, and taking them out of service and back."""
    only_alone(context, pool, admin, token_file, as_json)
    return list_engines(pool, admin, token_file, as_json) if context.invoked_subcommand is None else 0


@engines_app.command("list", epilog="Example: kvgate engines list --json")
def list_engines(
    pool: InPool = None, admin: Admin = None, token_file: TokenFile = None, as_json: AsJson = False
) -> int:
    """All engines: state, capacity, what is reserved there, and their own gauges."""
    told = AdminPort(admin, token_file).get("/admin/engines", pool=pool)
    _print(told, as_json=as_json)
    return 0


@engines_app.command(epilog="Example: kvgate engines drain http://gpu-a:8000")
def drain(
    engine_id: EngineId,
    pool: InPool = None,
    admin: Admin = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> int:
    """Give an engine no new work, in all processes; what runs there runs on."""
    return _tell("drain", engine_id, pool, AdminPort(admin, token_file), as_json=as_json)


@engines_app.command(epilog="Example: kvgate engines undrain http://gpu-a:8000")
def undrain(
    engine_id: EngineId,
    pool: InPool = None,
    admin: Admin = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> int:
    """Give an engine work again, in all processes."""
    return _tell("undrain", engine_id, pool, AdminPort(admin, token_file), as_json=as_json)


def _tell(what: str, engine_id: str, pool: str | None, port: AdminPort, *, as_json: bool) -> int:
    """Exit code 1 where other processes could not be told yet."""
    told = port.post(f"/admin/engines/{what}", {"engine_id": engine_id, "pool": pool})
    _print(told, as_json=as_json)
    if not told["everywhere"]:
        typer.echo("Here only: the shared ledger is away. It is told as soon as it can be.", err=True)
    return 0 if told["everywhere"] else 1


def _print(told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(told)
        return
    numbers = ("KV blocks", "usable", "reserved", "in use", "running", "waiting")
    rows = table("engine", "pool", "state", *numbers, "why", right=frozenset(numbers))
    for engine in told["engines"]:
        limits, gauges = engine["limits"] or {}, engine["gauges"] or {}
        rows.add_row(
            engine["engine_id"],
            engine["pool"],
            engine["state"],
            _count(limits.get("blocks")),
            _usable(_open(engine), limits.get("blocks")),
            _count(engine["reserved_blocks"]),
            _percent(gauges.get("kv_usage")),
            _count(gauges.get("running")),
            _count(gauges.get("waiting")),
            engine.get("why") or engine.get("last_error") or "",
        )
    show(rows)
    if any(engine.get("share_blocks") is not None for engine in told["engines"]):
        show(
            "The shared ledger is away: usable is the most of an engine that each process may use until it is back."
        )


def _open(engine: dict[str, Any]) -> int | None:
    """What may be filled; None for all."""
    bounds = (engine.get("blocks_usable"), engine.get("share_blocks"))
    return min((bound for bound in bounds if bound is not None), default=None)


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _usable(usable: int | None, blocks: int | None) -> str:
    """What the ledger fills at present, or one process, where that is less than all."""
    return "all" if blocks and usable is None else _count(usable)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
