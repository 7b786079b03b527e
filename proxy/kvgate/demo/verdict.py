"""What the demo claims, held against what was measured. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvgate.demo.plan import DemoPlan
    from kvgate.load import Report


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence, whether it held, and the numbers it rests on."""

    text: str
    holds: bool
    seen: str


@dataclass(frozen=True, slots=True)
class Result:
    """Both phases and the claims about them."""

    plan: DemoPlan
    direct: Report
    kvgate: Report
    claims: tuple[Claim, ...]

    @property
    def ok(self) -> bool:
        return all(claim.holds for claim in self.claims)


def judge(plan: DemoPlan, direct: Report, kvgate: Report, reservations_max: Mapping[str, int]) -> Result:
    """Hold the claims of the demo against two reports; `reservations_max` is by engine, from the ledger."""
    return Result(plan, direct, kvgate, tuple(_claims(plan, direct, kvgate, reservations_max)))


def _claims(
    plan: DemoPlan, direct: Report, kvgate: Report, reservations_max: Mapping[str, int]
) -> list[Claim]:
    fits, offered = plan.fits_per_engine, plan.offered
    reserved = max(reservations_max.values(), default=0)
    most = [max(engine.running_max, engine.in_flight_max) for engine in kvgate.engines.values()]
    return [
        Claim(
            "sent directly, the engines preempt and streams freeze",
            direct.preemptions > 0 and direct.frozen > 0,
            f"{direct.preemptions} preemptions, {direct.frozen} frozen",
        ),
        Claim(
            "through kvgate nothing is preempted and nothing freezes",
            kvgate.preemptions == 0 and kvgate.frozen == 0,
            f"{kvgate.preemptions} preemptions, {kvgate.frozen} frozen",
        ),
        Claim(
            "through kvgate every session completes",
            kvgate.completed == offered,
            f"{kvgate.completed} of {offered}",
        ),
        Claim(
            f"through kvgate no engine ever has more than the {fits} sessions that fit",
            len(most) == plan.engines and max(most) <= fits,
            f"at most {max(most, default=0)} in an engine, {reserved} reserved",
        ),
    ]
