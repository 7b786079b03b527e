"""What the demo claims, held against what was measured. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvgate.demo.phase import LedgerWatch
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


def judge(plan: DemoPlan, direct: Report, kvgate: Report, ledger: LedgerWatch) -> Result:
    """Hold the claims of the demo against two reports and what was seen of the ledger."""
    return Result(plan, direct, kvgate, tuple(_claims(plan, direct, kvgate, ledger)))


def _claims(plan: DemoPlan, direct: Report, kvgate: Report, ledger: LedgerWatch) -> list[Claim]:
    fits, offered = plan.fits_per_engine, plan.offered
    most = [max(engine.running_max, engine.in_flight_max) for engine in kvgate.engines.values()]
    reserved = max(ledger.reservations_max.values(), default=0)
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
            f"through kvgate no engine ever has more sessions than it can hold to their end ({fits}, or up to "
            f"{plan.most_per_engine} while some are about to end)",
            len(most) == plan.engines and max(most) <= plan.most_per_engine,
            f"at most {max(most, default=0)} in an engine, {reserved} reserved",
        ),
        Claim(
            "in the end kvgate holds nothing",
            ledger.is_empty,
            f"{sum(ledger.reserved_blocks.values())} blocks reserved, {ledger.queued} waiting",
        ),
    ]
