"""How a request ends that the ledger does not start, and when its client should come back.

`Retry-After` is of the tenant's own queue: how many are ahead there, and how fast the tenant is granted.
"""

from __future__ import annotations

import math

from kvgate.admission import said
from kvgate.admission.advice import may_start, smaller, what_helps
from kvgate.admission.asking import z_for
from kvgate.admission.attempt import Passage
from kvgate.admission.contract import Answer, Ended
from kvgate.admission.cut_off import CutOff, cut_off
from kvgate.admission.pace import Pace
from kvgate.admission.pricing import Priced
from kvgate.clock import Clock
from kvgate.ledger.base import Ledger, RateSpent, Refusal
from kvgate.telemetry.metrics import Telemetry
from kvgate_policies.overload import retry_after_s
from kvgate_policies.types import Outcome, TenantPolicy

PROCESSES_KEPT_S = 1.0
"""How long the number of processes is taken to hold: a view of the ledger is too much for each of a flood."""


class Refusing:
    def __init__(self, ledger: Ledger, pace: Pace, telemetry: Telemetry, clock: Clock) -> None:
        self._ledger = ledger
        self._pace = pace
        self._telemetry = telemetry
        self._clock = clock
        self._processes = 1
        self._count_again_s = -math.inf

    def rate(self, spent: RateSpent, tenant: TenantPolicy) -> Ended:
        self._telemetry.rate_refused(tenant.name, spent.budget)
        answer = said.rate_spent(tenant, spent.budget, spent.retry_after_s)
        return Ended(Outcome.REJECTED_TENANT_RATE, answer)

    def timed_out(self, passage: Passage, ahead: int) -> Ended:
        """Its tenant's longest wait is over: for room, or for a shared ledger that is away, without which it can't
        start, however idle its engine.
        """
        tenant = passage.call.tenant
        alone = None
        if self._ledger.mode == "local":
            alone = cut_off(passage.priced, tenant.name, self._ledger.view(), z_for(tenant.risk))
        if alone is not None and alone.for_ledger:
            return Ended(Outcome.REJECTED_LEDGER_UNAVAILABLE, self._too_large_alone(passage, alone))
        retry_s = self._retry_after_s(tenant.name, ahead + 1)
        answer = said.queue_timeout(tenant, ahead, retry_s, smaller(passage.request), alone)
        return Ended(Outcome.EVICTED_QUEUE_TIMEOUT, answer)

    def _too_large_alone(self, passage: Passage, alone: CutOff) -> Answer:
        tenant, most = passage.call.tenant, alone.most

        def is_in(priced: Priced) -> bool:
            costs = priced.costs.values()
            return all(cost.blocks <= most.blocks and cost.seqs <= most.seqs for cost in costs)

        helps, is_enough = what_helps(passage.request, passage.priced, tenant, is_in)
        return said.larger_than_share(tenant, alone, helps if is_enough else None)

    def _too_large(self, passage: Passage) -> Answer:
        tenant, view = passage.call.tenant, self._ledger.view()
        helps, _ = what_helps(
            passage.request, passage.priced, tenant, lambda priced: may_start(priced, tenant, view)
        )
        return said.too_large(passage.priced.costs, tenant.name, view, helps)

    def refused(self, refusal: Refusal, passage: Passage, *, waited: bool) -> Ended:
        """`waited`: it stood in the queue already."""
        tenant = passage.call.tenant
        match refusal:
            case Refusal.QUEUE_FULL:
                retry_after_s = self._retry_after_s(tenant.name, max(tenant.queue_depth_max, 1))
                return Ended(Outcome.REJECTED_QUEUE_FULL, said.queue_full(tenant, retry_after_s))
            case Refusal.NEVER_FITS:
                outcome = Outcome.EVICTED_NEVER_FITS if waited else Outcome.REJECTED_NEVER_FITS
                return Ended(outcome, self._too_large(passage))
            case Refusal.NO_ENGINE:
                return Ended(Outcome.REJECTED_NO_BACKEND, said.no_backend())
            case Refusal.DRAINING:
                return Ended(
                    Outcome.EVICTED_DRAINING if waited else Outcome.REJECTED_DRAINING, said.draining()
                )
            case Refusal.UNAVAILABLE:
                return Ended(Outcome.REJECTED_LEDGER_UNAVAILABLE, said.ledger_unavailable())
            case Refusal.RATE:
                raise AssertionError("a ledger refuses for a spent budget by RateSpent")

    def _retry_after_s(self, tenant: str, ahead: int) -> float:
        """The middle of the spread; the answer's own jitter spreads it.

        `ahead` counts those of the tenant in all processes: the others are taken to grant it as much as this one.
        """
        now_s = self._clock.monotonic()
        if now_s >= self._count_again_s:
            self._count_again_s = now_s + PROCESSES_KEPT_S
            self._processes = self._ledger.view().processes
        return retry_after_s(ahead, self._pace.grants_per_s(tenant, now_s) * self._processes, jitter=0.5)
