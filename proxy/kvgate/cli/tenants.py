"""`kvgate tenants`: who they are, what holds for them now, and changing that for a while."""

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
    seconds,
    segment,
    share,
    show,
    table,
)
from kvgate.errors import ConfigError

PAGES_MAX = 100
"""Of 200 tenants each: more than a policy file holds."""
TAKE_BACK = "none"
"""As a value: what the file says holds again."""
FIELDS_HELP = (
    "What is to hold: weight, guarantee, limit, limit_tokens, class, queue_depth_max, queue_wait_s_max, "
    f"max_tokens_cap, tokens_per_minute, requests_per_minute, mode. {TAKE_BACK} takes a field back."
)

tenants_app = typer.Typer(
    help="Tenants of a running kvgate: what holds for them, what they use, and changes for a while.",
    epilog="Example: kvgate tenants set chat weight=6 --for 1h",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.")]


@tenants_app.callback(invoke_without_command=True)
def root(
    context: typer.Context, admin: Admin = None, token_file: TokenFile = None, as_json: AsJson = False
) -> int:
    """Tenants of a running kvgate: what holds for them, what they use, and changes for a while."""
    only_alone(context, admin, token_file, as_json)
    return list_tenants(admin, token_file, as_json) if context.invoked_subcommand is None else 0


@tenants_app.command("list", epilog="Example: kvgate tenants list --json")
def list_tenants(admin: Admin = None, token_file: TokenFile = None, as_json: AsJson = False) -> int:
    """All tenants, with what they use now in each pool."""
    told = _all(AdminPort(admin, token_file))
    if as_json:
        print_json({"tenants": told})
        return 0
    right = frozenset({"weight", "KV blocks", "guaranteed", "limit", "running", "waiting", "longest wait"})
    rows = table(
        "tenant", "pool", "class", "weight", "KV blocks", "guaranteed", "limit", "running", "waiting",
        "longest wait", "changed", right=right,
    )  # fmt: skip
    for tenant in told:
        for use in tenant["pools"]:
            rows.add_row(tenant["name"], *_use(use), _changed(tenant["changes"], use["pool"]))
    show(rows)
    return 0


@tenants_app.command("show", epilog="Example: kvgate tenants show chat")
def show_tenant(
    name: Name, admin: Admin = None, token_file: TokenFile = None, as_json: AsJson = False
) -> int:
    """Everything that holds for a tenant, with where each value comes from."""
    _print(AdminPort(admin, token_file).get(f"/admin/tenants/{segment(name)}"), as_json=as_json)
    return 0


@tenants_app.command("set", epilog="Example: kvgate tenants set chat weight=6 limit=50% --for 1h")
def set_tenant(
    name: Name,
    values: Annotated[
        list[str],
        typer.Argument(metavar="FIELD=VALUE…", help=FIELDS_HELP),
    ],
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long, a week at most. Default: 1h")
    ] = None,
    pool: InPool = None,
    admin: Admin = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> int:
    """Change what holds for a tenant, for a while and in all processes; the file is not touched."""
    body: dict[str, Any] = dict(map(_pair, values))
    body |= {key: value for key, value in (("for", for_), ("pool", pool)) if value is not None}
    _print(AdminPort(admin, token_file).patch(f"/admin/tenants/{segment(name)}", body), as_json=as_json)
    return 0


@tenants_app.command(epilog="Example: kvgate tenants unset chat")
def unset(
    name: Name,
    pool: InPool = None,
    admin: Admin = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> int:
    """End a change of a tenant before its time: the file holds again."""
    told = AdminPort(admin, token_file).delete(f"/admin/tenants/{segment(name)}", pool=pool)
    _print(told, as_json=as_json)
    return 0


def _pair(text: str) -> tuple[str, str | None]:
    field, equals, value = text.partition("=")
    if not (field and equals and value):
        raise ConfigError(f"{text!r} is not allowed; allowed: FIELD=VALUE, such as weight=6 or limit=50%")
    if field in {"for", "pool"}:
        raise ConfigError(f"{text!r} is not allowed; allowed: --{field} {value}")
    return field, None if value == TAKE_BACK else value


def _all(port: AdminPort) -> list[dict[str, Any]]:
    tenants: list[dict[str, Any]] = []
    after: str | None = None
    for _ in range(PAGES_MAX):
        told = port.get("/admin/tenants", after=after)
        tenants += told["tenants"]
        after = told["next"]
        if after is None:
            break
    return tenants


def _print(told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(told)
        return
    from kvgate.config.shown import shown  # noqa: PLC0415  pydantic takes 100 ms

    for in_pool in told["pools"]:
        use = in_pool["use"]
        show(
            f"{told['name']} in {in_pool['pool']}: {use['blocks']:,} of {use['blocks_limit']:,} KV blocks, "
            f"{use['reservations']:,} running, {use['queued']:,} waiting"
        )
        rows = table("field", "value", "from")
        for field, value in in_pool["policy"].items():
            rows.add_row(field, shown(field, value["value"]), value["origin"])
        show(rows, "")
    for change in told["changes"]:
        where = "in all pools" if change["pool"] is None else f"in {change['pool']}"
        fields = ", ".join(f"{name}={shown(name, value)}" for name, value in change["fields"].items())
        show(f"changed {where} for {seconds(change['left_s'])} more, until {change['until']}: {fields}")


def _use(use: dict[str, Any]) -> tuple[str, ...]:
    limit = share(use["limit"]) if use["limit_tokens"] is None else f"{use['limit_tokens']:,} tokens"
    wait = seconds(use["oldest_wait_s"]) if use["queued"] else "–"
    counts = (f"{use['reservations']:,}", f"{use['queued']:,}", wait)
    bounds = (share(use["guarantee"]), limit)
    return use["pool"], use["class"], f"{use['weight']:g}", f"{use['blocks']:,}", *bounds, *counts


def _changed(changes: list[dict[str, Any]], pool: str) -> str:
    left = [change["left_s"] for change in changes if change["pool"] in {None, pool}]
    return f"for {seconds(min(left))}" if left else ""
