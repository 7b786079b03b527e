"""Whether a process can serve, and what the admin port sees of its pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.admin.state import PoolState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvgate.api.pools import PoolLine
    from kvgate.assembly.file import FileState

NO_ENGINE = "no engine is up and accepting work yet; see /admin/engines"


def readiness(
    lines: Sequence[PoolLine], file: FileState, *, draining: bool
) -> tuple[bool, dict[str, object]]:
    """Ready while at least one pool can serve: the others' requests are refused, and theirs are not.

    Never depends on how busy it is.
    """
    pools = {line.name: _pool(line) for line in lines}
    ready = any(usable for usable, _ in pools.values()) and not draining
    checks: dict[str, object] = {
        "policy": "ok" if file.refused is None else "the file on the disk is refused; see /admin/policy",
        **({"policy_digest": file.digest} if file.path else {}),
        "policy_taken_at": file.taken_at,
    }
    if len(pools) == 1:
        checks |= next(iter(pools.values()))[1]
    else:
        checks["pools"] = {name: {"ready": usable, **parts} for name, (usable, parts) in pools.items()}
    return ready, {**checks, "draining": "yes" if draining else "no"}


def pool_states(lines: Sequence[PoolLine]) -> list[PoolState]:
    return [
        PoolState(
            name=line.name,
            aliases=line.spec.aliases,
            ledger_view=line.ledger.view,
            engine_statuses=line.engine_pool.snapshot,
            models=line.engine_pool.model_names,
        )
        for line in lines
    ]


def _pool(line: PoolLine) -> tuple[bool, dict[str, object]]:
    engine, mode = bool(line.engine_pool.available()), line.ledger.mode
    parts: dict[str, object] = {
        "ledger": "ok" if mode in {"memory", "redis"} else f"the shared ledger is away; mode {mode}",
        "engine": "ok" if engine else NO_ENGINE,
    }
    return engine and mode != "closed", parts
