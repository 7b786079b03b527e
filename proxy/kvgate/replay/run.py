"""Replaying a workload under several policies, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.errors import ConfigError
from kvgate.replay.score import Replayed, replayed
from kvgate.replay.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvgate.load.score import Objective
    from kvgate.replay.plan import Plan
    from kvgate.replay.workload import Workload

NAMES_SHOWN_MAX = 5


def replay(
    workload: Workload,
    plans: Sequence[Plan],
    objective: Objective,
    *,
    exact: bool = False,
    progress: Callable[[str, float], None] = lambda _name, _share: None,
) -> list[Replayed]:
    """One answer for each plan. `progress` is told the policy and how much of it is over, 0 to 1.

    Raises ConfigError for a policy that knows none of the tenants and refuses the unknown.
    """
    for plan in plans:
        _check_tenants(workload, plan)
    found: list[Replayed] = []
    for plan in plans:
        world = World(plan, objective, workload.span_s, exact=exact)
        record = world.run(workload.offered(), lambda share, name=plan.name: progress(name, share))  # type: ignore[misc]
        found.append(replayed(plan, record))
    return found


def _check_tenants(workload: Workload, plan: Plan) -> None:
    identity, known = plan.book.identity, plan.book.names
    if identity.source == "anonymous" or identity.unknown is not None or set(workload.tenants) & set(known):
        return
    theirs, ours = (", ".join(names[:NAMES_SHOWN_MAX]) for names in (workload.tenants, known))
    raise ConfigError(
        f"{plan.name}: refuses all requests of {workload.name}: they belong to {theirs}, and the policy knows {ours}. "
        f"Deal them out with --tenant NAME:SHARE, once for each"
    )
