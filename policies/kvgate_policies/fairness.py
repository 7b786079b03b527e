"""Whose turn is it? Start tags, classes that age, guarantees and limits.

A *flow* is one tenant's waiting requests of one class. Four rules decide which flow is due; every ledger applies
these same functions, so that all come to the same choice.

**Inside a class: start-time fair queueing** (Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996, IEEE/ACM
ToN 5(5) 1997). A flow has a start tag S, a class a virtual time V. The flow with the lowest tag is due, and its
grant sets V to its tag (V never falls) and adds `work / weight` to the tag. A flow that enters the walk starts at
max(S, V): one that was idle, or stood at its limit, has earned nothing meanwhile. The work is an estimate; at the
request's end the difference is added to the tag, with either sign; to max(S, V) for a flow outside the walk, so
that a tag at or below V never matters and can be forgotten.

The bound: while two flows i and j of a class are both in the walk, the service they are charged differs by

    |W_i / w_i − W_j / w_j| ≤ l_i / w_i + l_j / w_j        (l: the largest single charge; `service_gap_max`)

Proof: V ≤ S ≤ V + l/w holds for every flow when it enters, and after each grant, since the lowest tag is granted;
and W/w of an interval is what the tag moved. It holds without the following, and each loosens it by exactly what it
names: a grant made while the other flow, with the lower tag, was *passed* because nothing of it fitted (by its
charge; `bypass_max` of them before an engine is kept free, then those on the other engines until it has drained);
a *correction* (by its amount over the weight, in the interval in which the request ends); a grant *below the
guarantee*, which is charged to its flow but is no turn and does not move V (by its charge); a change of weight.

**Classes** are served in their order, except that a class which was overtaken `AGEING` times comes first, once.
A grant in a class overtakes each lower class that has a flow in the walk. So a class that has something which fits, or
is kept free for it, gets at least one of any `AGEING + 1` grants in its own and higher classes.

**Guarantee**: tenants that hold fewer blocks than their guarantee come before all others.

**Limit**: no grant takes a tenant above it. A tenant that does not borrow has its guarantee for a limit, and what it
does not use of it is open to nobody else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvgate_policies.types import CLASSES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvgate_policies.types import TenantRules

AGEING = 16
"""Grants of higher classes that a class waits out before it is first: a floor of 6 % of the grants for the lowest."""
FLOWS_MAX = 8
"""Flows of which nothing fitted that one walk looks past: keeps a grant as cheap among 1,000 tenants as among 10."""

LEVELS = {priority: level for level, priority in enumerate(CLASSES)}
"""A class's place in the order of service, 0 first."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """What shares of a pool are taken of: all engines that are known, accepting work or not."""

    blocks: int = 0
    """Sum of the usable KV blocks; 0 when no engine is known, and then no share is evaluated."""
    block_tokens_min: int = 1
    """Tokens of the smallest block, so that an absolute limit is never read too high."""


def start_tag(tag: float, virtual: float) -> float:
    """The tag of a flow that enters the walk."""
    return max(tag, virtual)


def charge(work: int, weight: float) -> float:
    """What a grant, or with a difference of works a correction, adds to a tag."""
    return work / weight


def service_gap_max(largest_work: int, weight: float, other_largest_work: int, other_weight: float) -> float:
    """The bound on |W/w − W'/w'| of two flows of a class that both wait, in tokens per weight."""
    return charge(largest_work, weight) + charge(other_largest_work, other_weight)


def levels_in_turn(overtaken: Sequence[int]) -> tuple[int, ...]:
    """The classes, as levels, in the order in which they are due: aged ones from the lowest up, then the others."""
    levels = range(len(overtaken))
    aged = [level for level in reversed(levels) if overtaken[level] >= AGEING]
    return (*aged, *(level for level in levels if overtaken[level] < AGEING))


def overtaken_after(
    overtaken: Sequence[int], granted_level: int, waiting: Sequence[bool], *, by_guarantee: bool
) -> tuple[int, ...]:
    """The counts after a grant, at most `AGEING` each.

    `waiting` says which classes have a flow in the walk. One by guarantee overtakes nobody.
    """
    counts = list(overtaken)
    counts[granted_level] = 0
    if not by_guarantee:
        for level in range(granted_level + 1, len(counts)):
            counts[level] = min(counts[level] + waiting[level], AGEING)
    return tuple(counts)


def guaranteed_blocks(rules: TenantRules, pool: PoolSize) -> int:
    """The guarantee in blocks of the present pool, rounded down."""
    return int(rules.guarantee * pool.blocks)


def limit_blocks(rules: TenantRules, pool: PoolSize, partitioned_blocks: int) -> int | None:
    """The limit in blocks of the present pool, rounded down; None when nothing limits the tenant.

    `partitioned_blocks` is the sum of the guarantees of the *other* tenants that do not borrow: all of the rest is
    the most that it can ever have. A tenant with the whole pool for a limit has none, so that an engine which was
    overdrawn by others' growth does not keep it from the next one.
    """
    if not pool.blocks:
        return None
    bounds: list[int] = []
    if rules.limit < 1:
        bounds.append(int(rules.limit * pool.blocks))
    if rules.limit_tokens is not None:
        bounds.append(rules.limit_tokens // pool.block_tokens_min)
    if not rules.borrow:
        bounds.append(guaranteed_blocks(rules, pool))
    if partitioned_blocks:
        bounds.append(pool.blocks - partitioned_blocks)
    return min(bounds, default=None)
