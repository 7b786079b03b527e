"""A pool in virtual time: arrivals, a ledger, engines, and a clock that jumps from one event to the next.

What decides is what decides over HTTP: the policy's book, `price_counted`, `ask_for` and `LedgerCore`. What is left
out is what takes no time there, or is no decision: parsing, connections, probes, failures. A request goes this way:

1. It arrives, is priced, and asks the ledger. It is refused, granted at once, or queued.
2. Queued, it leaves by its grant, by the end of its wait, or by its client's leaving.
3. Granted, its sequences join their engine, which begins with them after the step that is in progress, as an engine
   that gets a request over a socket does. Its first token gives the prefill part of the reservation back.
4. It ends with the last token of its last sequence, by its client's leaving, or by the bounds that kvgate sets (a
   stream's first token, the whole request). What ended early keeps its reservation for `draining_hold_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from kvgate.admission.contract import Answer, Call
from kvgate.admission.oversize import within_reach
from kvgate.admission.pricing import Priced, served
from kvgate.ledger.base import Ask, Grant, RateSpent, Refusal
from kvgate.ledger.core import LedgerCore
from kvgate.replay.agenda import Agenda
from kvgate.replay.brake import Brake
from kvgate.replay.foreseeing import BEAT_S, Counted, Foreseeing, Held
from kvgate.replay.job import Job, State
from kvgate.replay.pool import Pool
from kvgate.replay.pricer import Pricer, call_of
from kvgate.replay.record import Fairness, Record
from kvgate_policies.forecast import POOL
from kvgate_policies.types import Outcome

if TYPE_CHECKING:
    from kvgate.load.score import Objective
    from kvgate.replay.offered import Offered
    from kvgate.replay.plan import Plan
    from kvgate_policies.types import TenantPolicy

SCAN_DEPTH, GRANTS_MAX = 4, 16
"""Bounds of the grant loop: those of `MemoryLedger`."""
_REFUSED: Mapping[Refusal, Outcome] = {
    Refusal.QUEUE_FULL: Outcome.REJECTED_QUEUE_FULL,
    Refusal.NEVER_FITS: Outcome.REJECTED_NEVER_FITS,
    Refusal.NO_ENGINE: Outcome.REJECTED_NO_BACKEND,
    Refusal.RATE: Outcome.REJECTED_TENANT_RATE,
}

Progress = Callable[[float], None]
"""Told how much of the time is over, 0 to 1, now and then."""


class World:
    """One policy before its engines. `run` once."""

    def __init__(self, plan: Plan, objective: Objective, span_s: float, *, exact: bool = False) -> None:
        """`span_s` is the time of the last arrival, or a bound on it; `exact` does every step of the engines."""
        self._plan, self._settings, self._book = plan, plan.settings, plan.book
        self._timeouts = plan.settings.timeouts
        self.record = Record(objective, span_s)
        self._pricer = Pricer(frozenset({plan.shape}))
        self._ledger = LedgerCore(
            bypass_max=plan.settings.bypass_max, scan_depth=SCAN_DEPTH, grants_max=GRANTS_MAX, tie=0
        )
        self._policies: dict[str, TenantPolicy | None] = {}
        self._jobs: dict[str, Job] = {}
        self._queued = 0
        self._reserved = 0
        self._numbers = count()
        self._agenda = Agenda()
        self._at = self._agenda.at
        self._pool = Pool(plan, self._agenda, began=self._began, finished=self._served, exact=exact)
        self._foreseeing = self._make_foreseeing()
        self._brake = Brake(self._ledger)

    @property
    def now_s(self) -> float:
        return self._agenda.now_s

    def _make_foreseeing(self) -> Foreseeing | None:
        """None where no tenant has forecasts: then nobody need count tokens while they come."""
        policies = [self._book.policy(name, self._plan.pool) for name in self._book.names]
        if all(policy.reservation == "guaranteed" for policy in policies):
            return None
        prefill = self._settings.prefill_tokens_max
        engine_ids = [limits.engine_id for limits in self._plan.limits()]
        return Foreseeing(self._ledger, lambda: self.now_s, self._lengths_changed, prefill, engine_ids)

    def run(self, offered: Iterable[Offered], progress: Progress = lambda _: None) -> Record:
        """Replay requests that come in the order of their arrival. Raises ValueError where they don't."""
        self._ledger.set_tenants(self._book.rules(self._plan.pool))
        for limits in self._plan.limits():
            self._ledger.observe(limits)
        self._at(Fairness.WINDOW_S, self._look_at_fairness)
        if self._foreseeing is not None:
            self._at(BEAT_S, self._look)
            self._at(self._settings.probe_interval_s, self._scrape)
        for number, one in enumerate(offered):
            if one.arrived_s < self.now_s - 1e-9:
                raise ValueError(f"a request of {one.arrived_s} s comes after one of {self.now_s} s")
            self._agenda.play(one.arrived_s)
            self._arrive(one)
            if not number % 2048:
                progress(self.now_s / max(self.record.span_s, 1e-9))
        self._finish()
        progress(1.0)
        return self.record

    def _finish(self) -> None:
        """Let all that is there come to its end; means are those up to the last arrival."""
        record = self.record
        record.engine_blocks_mean = self._pool.held_block_s() / self.now_s if self.now_s > 0 else 0.0
        self._agenda.play_while(lambda: self._jobs)
        record.events = self._agenda.happened + record.total.offered
        for curve in (record.queued, record.reserved_blocks):
            curve.go_on(record.span_s)
        if self._jobs:
            raise AssertionError(f"{len(self._jobs)} requests never ended")

    # Arrivals

    def _arrive(self, offered: Offered) -> None:
        tenant = self._policy_of(offered.tenant)
        if tenant is None:
            self.record.refused(offered.tenant, Outcome.REJECTED_UNAUTHORIZED)
            return
        call = call_of(offered, tenant)
        priced = self._price(offered, tenant)
        if isinstance(priced, Answer) or self._fills_the_window(offered):
            # What is not priced and not enforced is sent to an engine; and so is what was counted too low.
            by_us = isinstance(priced, Answer) and call.enforced
            outcome = Outcome.REJECTED_NEVER_FITS if by_us else Outcome.UPSTREAM_REFUSED
            self.record.refused(offered.tenant, outcome)
            return
        self._reserve(offered, call, priced)

    def _price(self, offered: Offered, tenant: TenantPolicy, *, exactly: bool = False) -> Priced | Answer:
        price = self._pricer.price_exactly if exactly else self._pricer.price
        priced = price(offered, tenant)
        if self._foreseeing is None or isinstance(priced, Answer):
            return priced
        return self._foreseeing.price(priced, tenant)

    def _fills_the_window(self, offered: Offered) -> bool:
        """Whether an engine refuses its prompt, which leaves no room for a token."""
        return offered.prompt_tokens >= self._plan.sizes.max_model_len

    def _policy_of(self, name: str) -> TenantPolicy | None:
        """That of the tenant it is; None when the policy refuses it."""
        if name not in self._policies:
            book = self._book
            alone = book.identity.source == "anonymous"
            known = book.names[0] if alone else name if name in book.names else book.identity.unknown
            self._policies[name] = None if known is None else book.policy(known, self._plan.pool)
        return self._policies[name]

    def _reserve(self, offered: Offered, call: Call, priced: Priced) -> None:
        ask = self._pricer.ask(str(next(self._numbers)), call, priced)
        job = Job(ask.request_id, offered, call, priced)
        answer = self._ask(ask, job)
        if not isinstance(answer, int):
            reason = Refusal.RATE if isinstance(answer, RateSpent) else answer
            self.record.refused(offered.tenant, _REFUSED[reason])
            self._apply()
            return
        self._jobs[job.request_id] = job
        self._queued += 1
        self._apply()
        if job.state is State.QUEUED:
            self.record.queued.change(self._queued, self.now_s)
            self._at(offered.arrived_s + call.wait_s_max, self._waited_too_long, job)
        if offered.patience_s is not None:
            self._at(offered.arrived_s + offered.patience_s, self._lose_patience, job)

    def _ask(self, ask: Ask, job: Job) -> int | Refusal | RateSpent:
        """As the line does it: a refusal for size that rests on an estimate is checked against the exact count, and one
        for what a forecast might grow to is not one.
        """
        answer = self._ledger.reserve(ask, self.now_s)
        if answer is Refusal.NEVER_FITS and not job.offered.exact:
            exact = self._price(job.offered, job.call.tenant, exactly=True)
            if isinstance(exact, Answer):
                return answer
            answer = self._ask_at(exact, ask, job)
        if answer is Refusal.NEVER_FITS:
            smaller = within_reach(job.priced, job.call.tenant, self._ledger.view(self.now_s))
            if smaller is not None:
                answer = self._ask_at(smaller, ask, job)
        return answer

    def _ask_at(self, priced: Priced, ask: Ask, job: Job) -> int | Refusal | RateSpent:
        job.priced = priced
        return self._ledger.reserve(self._pricer.ask(ask.request_id, job.call, priced), self.now_s)

    # What the ledger decides

    def _apply(self) -> None:
        """Carry out what was decided; until the grant loop has come to its end."""
        while True:
            for request_id, decision in self._ledger.take_decisions():
                job = self._jobs[request_id]
                if isinstance(decision, Grant):
                    self._start(job, decision)
                else:
                    self._leave_queue(job, Outcome.EVICTED_NEVER_FITS)
            if not self._ledger.unfinished:
                return
            self._ledger.go_on()

    def _start(self, job: Job, grant: Grant) -> None:
        now_s, offered = self.now_s, job.offered
        job.state, job.granted_s = State.RUNNING, now_s
        job.held = Held(grant.cost, self._hold)
        self._queued -= 1
        self.record.queued.change(self._queued, now_s)
        self._hold(grant.cost.use_blocks)
        job.engine = grant.engine_id
        self._pool.start(job)
        if self._foreseeing is not None:
            job.run = self._foreseeing.begin(job.held, grant, job.priced, job.call.tenant, self._counted(job))
        self._at(self._patient_until_s(job), self._look_at_times, job)
        if not offered.stream:
            prefill_s = job.priced.count.total / self._settings.prefill_tokens_max
            self._at(now_s + prefill_s, self._prefilled, job)
        if offered.seen_enough_s is not None:
            self._at(now_s + offered.seen_enough_s, self._leave, job, Outcome.CLIENT_GONE)

    def _counted(self, job: Job) -> Counted | None:
        """As its stream is counted; nothing is seen of an answer in one piece."""
        if not job.offered.stream:
            return None
        return Counted(lambda: self._pool.generated(job))

    # What the engines do

    def _began(self, job: Job) -> None:
        if job.offered.stream and job.unfinished:
            self._prefilled(job)

    def _prefilled(self, job: Job) -> None:
        """The prompt is computed: that part of its reservation is free."""
        if job.state is State.RUNNING and job.held is not None:
            job.held.cost = replace(job.held.cost, prefill_tokens=0)
            self._ledger.renew(job.request_id, job.held.cost)
            self._apply()

    def _served(self, job: Job) -> None:
        if job.state is not State.RUNNING:
            return  # it left in the last step
        if job.run is not None and self._foreseeing is not None:
            by_itself = job.offered.output_tokens < job.priced.budget.max_tokens
            self._foreseeing.end(job.run, job.generated, by_itself=by_itself)
        self.record.ended(job, Outcome.SERVED, self.now_s)
        self._release(job)

    def _look_at_times(self, job: Job) -> None:
        """End it where a bound of time is over; look again at the next one, which few live to see."""
        until_s = self._patient_until_s(job)
        if until_s <= self.now_s:
            self._leave(job, Outcome.UPSTREAM_TIMEOUT)
        elif job.state is State.RUNNING:
            self._at(until_s, self._look_at_times, job)

    def _patient_until_s(self, job: Job) -> float:
        """When it is given up: a stream without its first token, and any request that takes too long."""
        wait_s = job.call.tenant.queue_wait_s_max
        overall_s = job.offered.arrived_s + self._timeouts.overall_s + wait_s
        if job.offered.stream and job.first_token_s is None:
            return min(job.granted_s + self._timeouts.first_byte_s, overall_s)
        return overall_s

    # Leaving

    def _waited_too_long(self, job: Job) -> None:
        if job.state is not State.QUEUED:
            return
        deadline_s, wait_s = job.call.deadline_s, job.call.tenant.queue_wait_s_max
        by_deadline = deadline_s is not None and deadline_s < wait_s
        outcome = Outcome.EVICTED_DEADLINE if by_deadline else Outcome.EVICTED_QUEUE_TIMEOUT
        self._ledger.end(job.request_id)
        self._leave_queue(job, outcome)
        self._apply()

    def _lose_patience(self, job: Job) -> None:
        if job.first_token_s is None:
            self._leave(job, Outcome.CLIENT_GONE)

    def _leave(self, job: Job, outcome: Outcome) -> None:
        """It ends early, wherever it is; nothing if it has ended."""
        if job.state is State.QUEUED:
            self._ledger.end(job.request_id)
            self._leave_queue(job, outcome)
            self._apply()
        elif job.state is State.RUNNING:
            job.state = State.DRAINING
            self._pool.abort(job)
            if job.run is not None and self._foreseeing is not None:
                self._foreseeing.end(job.run, None, by_itself=False)
            self._at(self.now_s + self._timeouts.draining_hold_s, self._drained, job, outcome, self.now_s)

    def _drained(self, job: Job, outcome: Outcome, left_s: float) -> None:
        self.record.ended(job, outcome, left_s)
        self._release(job)

    def _leave_queue(self, job: Job, outcome: Outcome) -> None:
        job.state = State.ENDED
        del self._jobs[job.request_id]
        self._queued -= 1
        self.record.queued.change(self._queued, self.now_s)
        self.record.refused(job.offered.tenant, outcome)

    def _release(self, job: Job) -> None:
        """Give back what it holds, and say what it took."""
        job.state = State.ENDED
        del self._jobs[job.request_id]
        held, offered = job.held, job.offered
        if held is None:
            raise AssertionError(f"{job.request_id} holds nothing")
        held.released = True
        self._hold(-held.cost.use_blocks)
        prompt_tokens = offered.prompt_tokens * offered.prompts
        self._ledger.end(job.request_id, served(job.priced, prompt_tokens, job.generated))
        job.sequences = []  # they know it: nothing is left in a ring
        self._apply()

    def _hold(self, blocks: int) -> None:
        self._reserved += blocks
        self.record.reserved_blocks.change(self._reserved, self.now_s)

    # Forecasts

    def _look(self) -> None:
        """What runs holds something else by now."""
        if self._foreseeing is not None:
            pause_s = self._foreseeing.look()
            self._apply()
            self._at(self.now_s + pause_s, self._look)

    def _scrape(self) -> None:
        seen = self._pool.seen()
        if self._foreseeing is not None:
            self._foreseeing.scraped(seen, self._pool.generated_tokens)
        self._brake.look(seen, self.now_s)
        self._apply()
        self._at(self.now_s + self._settings.probe_interval_s, self._scrape)

    def _lengths_changed(self, tenants: frozenset[str]) -> None:
        """Those of them that wait have another price."""
        foreseeing = self._foreseeing
        for job in [job for job in self._jobs.values() if job.state is State.QUEUED]:
            tenant = job.call.tenant
            if foreseeing is not None and tenant.reservation == "forecast" and tenants & {tenant.name, POOL}:
                job.priced = foreseeing.price(job.priced, tenant)
                self._ledger.reprice(job.request_id, job.priced.costs)

    def _look_at_fairness(self) -> None:
        self.record.fairness.look(self._ledger.view(self.now_s))
        self._at(self.now_s + Fairness.WINDOW_S, self._look_at_fairness)
