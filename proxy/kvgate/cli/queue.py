"""`kvgate queue`: who waits, how long, and for what."""

from __future__ import annotations

from typing import Any

from kvgate.cli.admin_port import (
    Admin,
    AdminPort,
    AsJson,
    InPool,
    TokenFile,
    print_json,
    seconds,
    show,
    table,
)


def queue(
    pool: InPool = None, admin: Admin = None, token_file: TokenFile = None, as_json: AsJson = False
) -> int:
    """Who waits at a running kvgate, how long, and for what."""
    told = AdminPort(admin, token_file).get("/admin/queue", pool=pool)
    if as_json:
        print_json(told)
        return 0
    rows = table(
        "pool", "tenant", "waiting", "longest wait", "waits for", right=frozenset({"waiting", "longest wait"})
    )
    for one in told["pools"]:
        for waiting in one["tenants"]:
            count, wait = f"{waiting['queued']:,}", seconds(waiting["oldest_wait_s"])
            rows.add_row(one["pool"], waiting["tenant"], count, wait, waiting["waits_for"])
    show(rows if rows.row_count else "Nobody waits.")
    for one in told["pools"]:
        if one["queued"]:
            show(f"{one['pool']}: {_room(one)}")
        for engine_id in one["kept_free"]:
            show(
                f"{engine_id} in {one['pool']} is kept free for a request that others have passed often enough."
            )
    return 0


def _room(pool: dict[str, Any]) -> str:
    """Of one pool, in words."""
    if not pool["engines_accepting"]:
        return f"no engine takes work; see `kvgate engines`.{_closed(pool)}"
    blocks, seqs = (pool[f"reserved_{what}"] - pool.get(f"closed_{what}", 0) for what in ("blocks", "seqs"))
    return (
        f"{blocks:,} of {pool['blocks']:,} KV blocks and {seqs:,} of "
        f"{pool['seqs']:,} sequence slots are reserved, {pool['engines_accepting']:,} of {pool['engines']:,} engines "
        f"take work.{_closed(pool)}{_prompts(pool)}{_share(pool)}"
    )


def _closed(pool: dict[str, Any]) -> str:
    """What runs where nothing new is started."""
    blocks, seqs = pool.get("closed_blocks", 0), pool.get("closed_seqs", 0)
    if not seqs and not blocks:
        return ""
    return f" Engines that take none still hold {blocks:,} blocks and {seqs:,} sequence{'s'[: seqs != 1]}."


def _prompts(pool: dict[str, Any]) -> str:
    """Where they are what keeps somebody out."""
    if not any(one["waits_for"] == "prompts" for one in pool["tenants"]):
        return ""
    tokens = pool["reserved_prefill_tokens"] - pool["closed_prefill_tokens"]
    return (
        f" {tokens:,} of {pool['prefill_tokens']:,} prompt tokens that may be under way are not computed yet: who "
        "waits for prompts goes on as they are."
    )


def _share(pool: dict[str, Any]) -> str:
    """What holds while the shared ledger is away."""
    if pool.get("share_blocks") is None:
        return ""
    return (
        f" The shared ledger is away: each process may use at most {pool['share_blocks']:,} of the blocks, and what "
        "needs more of an engine than its share waits until it is back."
    )
