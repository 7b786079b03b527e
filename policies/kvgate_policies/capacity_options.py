"""What would make more sequences fit: each mitigation and every combination, evaluated and ranked.

The sums are those of `capacity`, so nothing is multiplied up from rules of thumb. Options are ranked by risk,
then by GPUs.

Quality and money are different things. Hence `ways_to` does not pick: for each number of GPUs it gives the
least risky option that reaches the target, and leaves the choice between them to whoever pays and whoever reads
the answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from kvgate_policies.capacity import Plan, make_plan
from kvgate_policies.capacity_dtypes import CapacityError
from kvgate_policies.capacity_mitigations import (
    COPIES,
    QUEUE_THE_REST,
    SWITCHES,
    TENSOR_PARALLEL,
    Mitigation,
    Risk,
    Trade,
)
from kvgate_policies.model_shape import ModelShapeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvgate_policies.capacity_setup import Setup

CLAIM_TOLERANCE = 0.9
"""Below this share of what is commonly said, the claim is corrected."""


@dataclass(frozen=True, slots=True)
class Option:
    """A mitigation or a combination of them, evaluated. `plan` is None where it can't be had: `unavailable`."""

    name: str
    trades: tuple[Trade, ...]
    risk: Risk
    why_risky: str
    cost: str
    precondition: str
    gpus: int
    plan: Plan | None = None
    factor: float = 0.0
    """Sequences compared with the setup as it is; 0 where that one holds none."""
    parts: int = 1
    claimed: float | None = None
    """What is commonly said of it, where something is."""
    unavailable: str = ""

    @property
    def overstated(self) -> bool:
        """Whether the sum gives clearly less than what is commonly said."""
        return self.claimed is not None and 0 < self.factor < CLAIM_TOLERANCE * self.claimed

    @property
    def max_sequences(self) -> int:
        return self.plan.max_sequences if self.plan is not None else 0

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """By risk, then cost; of equals the one that gives more, then the simpler."""
        return self.risk, self.gpus, -self.max_sequences, self.parts


def singles(setup: Setup) -> tuple[Option, ...]:
    """Each mitigation alone, ranked; those that can't be had here come last, with the reason.

    Raises CapacityError or ModelShapeError where the setup itself can't be planned.
    """
    base = make_plan(setup)
    each = (QUEUE_THE_REST, *SWITCHES, *TENSOR_PARALLEL, *COPIES)
    return _ranked(_evaluate(base, (mitigation,)) for mitigation in each)


def combinations(setup: Setup) -> tuple[Option, ...]:
    """Every combination of two mitigations and more that can be had, ranked. At most 8 × 7 are looked at.

    Raises as `singles`.
    """
    base = make_plan(setup)
    switches = [
        [part for part, on in zip(SWITCHES, chosen, strict=True) if on]
        for chosen in product((False, True), repeat=len(SWITCHES))
    ]
    money: list[list[Mitigation]] = [[], *([one] for one in (*TENSOR_PARALLEL, *COPIES))]
    chosen = [(*some, *more) for some in switches for more in money if len(some) + len(more) > 1]
    found = [_evaluate(base, parts) for parts in chosen]
    return _ranked(option for option in found if option.plan is not None)


def ways_to(target: float, options: Iterable[Option]) -> tuple[Option, ...]:
    """For each number of GPUs, fewest first, the least risky option with at least `target` times the sequences.

    More GPUs appear only where they lower the risk.
    """
    ways: list[Option] = []
    reaching = [option for option in options if option.plan is not None and option.factor >= target]
    for option in sorted(reaching, key=lambda one: (one.gpus, *one.rank)):
        if not ways or (option.gpus > ways[-1].gpus and option.risk < ways[-1].risk):
            ways.append(option)
    return tuple(ways)


def _ranked(options: Iterable[Option]) -> tuple[Option, ...]:
    return tuple(sorted(options, key=lambda option: (option.plan is None, *option.rank)))


def _evaluate(base: Plan, parts: tuple[Mitigation, ...]) -> Option:
    setup = base.setup
    plan: Plan | None = None
    unavailable = ""
    for part in parts:
        changed = part.apply(setup)
        if isinstance(changed, str):
            unavailable = changed
            break
        setup = changed
    else:
        try:
            plan = make_plan(setup)
        except (CapacityError, ModelShapeError) as error:
            unavailable = str(error)
    return _option(base, setup, parts, plan, unavailable)


def _option(
    base: Plan, setup: Setup, parts: tuple[Mitigation, ...], plan: Plan | None, unavailable: str
) -> Option:
    factor = plan.max_sequences / base.max_sequences if plan is not None and base.max_sequences else 0.0
    costs = [part.cost for part in parts if part.cost != "none"]
    return Option(
        name=" + ".join(part.label if unavailable else part.name(setup) for part in parts),
        trades=tuple(dict.fromkeys(part.trades for part in parts)),
        risk=max(part.risk for part in parts),
        why_risky="; ".join(part.why_risky for part in parts if part.why_risky),
        cost=f"{costs[0]} ({setup.gpus} instead of {base.setup.gpus})" if costs else "no more GPUs",
        precondition="; ".join(part.precondition(setup) for part in parts),
        gpus=setup.gpus,
        plan=plan,
        factor=factor,
        parts=len(parts),
        claimed=parts[0].claimed if len(parts) == 1 else None,
        unavailable=unavailable,
    )
