"""How a request ends that the ledger does not start, and when its client should come back.

`Retry-After` is of the tenant's own queue: how many are ahead there, and how fast the tenant is granted.
"""

from __future__ import annotations

import math

from kvgate.admission import said
from kvgate.admission.attempt import Passage
from kvgate.admission.contract import Ended
from kvgate.admission.pace import Pace
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

    def timed_out(self, tenant: TenantPolicy, ahead: int) -> Ended:
        answer = said.queue_timeout(tenant, ahead, self._retry_after_s(tenant.name, ahead + 1))
        return Ended(Outcome.EVICTED_QUEUE_TIMEOUT, answer)

    def refused(self, refusal: Refusal, passage: Passage, *, waited: bool) -> Ended:
        """`waited`: it stood in the queue already."""
        tenant = passage.call.tenant
        match refusal:
            case Refusal.QUEUE_FULL:
                retry_after_s = self._retry_after_s(tenant.name, max(tenant.queue_depth_max, 1))
                return Ended(Outcome.REJECTED_QUEUE_FULL, said.queue_full(tenant, retry_after_s))
            case Refusal.NEVER_FITS:
                answer = said.too_large(passage.priced.costs, tenant.name, self._ledger.view())
                return Ended(Outcome.EVICTED_NEVER_FITS if waited else Outcome.REJECTED_NEVER_FITS, answer)
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
