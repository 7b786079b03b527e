"""The straight line of one request. Read this file first: the whole story is here.

1. Price it: count the prompt, decide on the output limit, compute blocks, slots and prefill tokens for every
   shape of engine (`pricing`).
2. Ask the ledger for room and a turn (`asking`), and wait: for the grant, for the tenant's longest wait or the
   request's own deadline, or for the client's leaving.
3. Try it at the engine the grant names (`attempt`). As long as the client has seen nothing, a busy, unreachable
   or broken engine sends the request back to 2, at its old place and under the same deadline.
4. The scope ends by whichever door, and gives back what it took (`holding`).

Cancelling `serve` is the client's leaving; every await here may be the last one. Where the policy only observes,
or is off, the ledger starts a request at once and says what it would have done; nothing of it is changed.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import replace
from typing import Literal

import anyio
import httpx

from kvgate.admission import said
from kvgate.admission.affinity import PrefixAffinity
from kvgate.admission.asking import ask_for
from kvgate.admission.attempt import Again, Attempt, Late, Passage
from kvgate.admission.contract import Answer, Call, Ended, Header, Reason, Reply
from kvgate.admission.holding import RELEASE_S_MAX, Holding
from kvgate.admission.lending import Lending
from kvgate.admission.oversize import within_reach
from kvgate.admission.pace import Pace
from kvgate.admission.pricing import Priced, Pricer, served
from kvgate.admission.refusing import Refusing
from kvgate.admission.sharing import Sharing
from kvgate.clock import Clock
from kvgate.config import Settings
from kvgate.engines.base import Engines, Trouble
from kvgate.forecasting import Forecaster
from kvgate.ledger.base import Ask, Grant, Ledger, RateSpent, Refusal, Served, Ticket
from kvgate.telemetry.metrics import Telemetry
from kvgate.telemetry.record import RequestRecord
from kvgate.telemetry.traces import Phase
from kvgate_policies.forecast import POOL
from kvgate_policies.types import InferenceRequest, Outcome

_WOULD: dict[str, str] = {Refusal.RATE: Reason.TENANT_RATE.value}
"""Where a refusal has another name than the reason that clients are told."""


class Admission:
    """Serves requests of one pool; holds what they share and nothing of any one of them."""

    def __init__(
        self,
        *,
        engines: Engines,
        ledger: Ledger,
        pricer: Pricer,
        upstream: httpx.AsyncBaseTransport,
        telemetry: Telemetry,
        clock: Clock,
        settings: Settings,
        forecaster: Forecaster | None = None,
    ) -> None:
        """Without a forecaster nothing is forecast, and what one of its own learns is for nobody."""
        self._engines = engines
        self._ledger = ledger
        self._pricer = pricer
        self._telemetry = telemetry
        self._clock = clock
        self._settings = settings
        self._affinity = PrefixAffinity(engines, on=settings.prefix_affinity)
        self._sharing = Sharing(on=settings.prefix_sharing)
        self._attempt = Attempt(engines, upstream, telemetry, clock, settings, self._affinity)
        self._pace = Pace()
        self._refusing = Refusing(ledger, self._pace, telemetry, clock)
        self._waiting: dict[str, Passage] = {}
        self._lending = Lending(self._sharing, engines, ledger, self._waiting)
        self._forecaster = forecaster or Forecaster(ledger, clock)
        self._forecaster.on_change = self.lengths_changed
        self._process = uuid.uuid4().hex
        self._asked = itertools.count()

    async def serve(
        self, request: InferenceRequest, call: Call, reply: Reply, record: RequestRecord
    ) -> Ended:
        """Take the request from its price to its end, by one deadline that nothing resets."""
        overall_s = self._settings.timeouts.overall_s + call.tenant.queue_wait_s_max
        with anyio.move_on_after(self._left_s(call, overall_s)):
            return await self._line(request, call, reply, record)
        return Ended(Outcome.UPSTREAM_TIMEOUT, said.overall_timeout(overall_s))

    async def _line(
        self, request: InferenceRequest, call: Call, reply: Reply, record: RequestRecord
    ) -> Ended:
        refused = self._refuse_early(request)
        if refused is not None:
            return refused
        if call.trace is not None:
            call.trace.enter(Phase.RESERVE)
        priced = await self._price(request, call, record)
        if isinstance(priced, Answer):
            return Ended(Outcome.REJECTED_NEVER_FITS, priced)
        try:
            passage = self._passage(request, call, reply, record, priced)
        except ValueError:
            return Ended(Outcome.REJECTED_BAD_REQUEST, said.unwritable_limit())
        priced = passage.priced
        ask = ask_for(
            self._next_id(),
            call,
            priced,
            mean_work=self._pace.asked(call.tenant.name, priced.work),
            left_s=self._left_s(call, call.wait_s_max),
            avoid=self._engines.without(request.model),
            prefer=self._affinity.prefer(passage.prefixes),
        )
        while True:
            grant = await self._wait_for_grant(ask, passage)
            if isinstance(grant, Ended):
                return grant
            result = await self._try(grant, passage)
            if isinstance(result, Ended):
                self._learn(result, passage)
                return result
            ask = self._queue_again(ask, grant, result, passage)

    async def _try(self, grant: Grant, passage: Passage) -> Ended | Again:
        """Hold the grant for one attempt. What came to nothing was no service; but its budgets stay charged, since
        it queues again.
        """
        async with Holding(self._ledger, grant, self._settings.timeouts.draining_hold_s) as held:
            held.measured_by(lambda: Served(0, grant.tokens))
            share = self._sharing.share_of(passage.beginning, grant)
            lent = self._lending.may_start(passage, grant, share)
            if lent is None:
                return Again(Late.UNSHARED)
            await held.shares(share, lent)
            self._granted(grant, passage)
            held.measured_by(lambda: served(passage.priced, None, 0))  # until the engine has answered
            result = await self._attempted(held, grant, passage)
            if isinstance(result, Again):
                held.measured_by(lambda: Served(0, grant.tokens))
        return result

    async def _attempted(self, held: Holding, grant: Grant, passage: Passage) -> Ended | Again:
        """Try it, under the eyes of those who forecast; they may send it back while its client has seen nothing."""
        outlook, tenant = passage.priced.outlook, passage.call.tenant
        with self._forecaster.running(held, grant, outlook, tenant, passage.revocations) as run:
            passage.run = run
            if run.scope is None:
                return await self._attempt.run(held, passage)
            with run.scope:
                return await self._attempt.run(held, passage)
        return Again(Late.REVOKED)

    async def _price(self, request: InferenceRequest, call: Call, record: RequestRecord) -> Priced | Answer:
        priced = await self._pricer.price(request, call.tenant)
        if isinstance(priced, Answer) and not call.enforced:
            self._observed(call, record, Refusal.NEVER_FITS)
            return await self._pricer.price_unbounded(request)
        return priced

    def _refuse_early(self, request: InferenceRequest) -> Ended | None:
        """What can be refused before anything is counted: cheap, for refusals come in floods."""
        if not self._engines.shapes() or not self._engines.available():
            return Ended(Outcome.REJECTED_NO_BACKEND, said.no_backend())
        if not self._engines.serves(request.model):
            return Ended(Outcome.REJECTED_UNKNOWN_MODEL, said.unknown_model(request.model))
        if not self._in_use(request):
            return Ended(Outcome.REJECTED_NO_BACKEND, said.no_backend())
        return None

    def _in_use(self, request: InferenceRequest) -> frozenset[str]:
        """The engines that take work now or in a moment and know the model."""
        return self._engines.available() - self._engines.without(request.model)

    def _passage(
        self, request: InferenceRequest, call: Call, reply: Reply, record: RequestRecord, priced: Priced
    ) -> Passage:
        """Everything the attempts need; the body is rewritten here, once, if the limit changed.

        Raises ValueError when the limit cannot be written.
        """
        facts: list[Header] = []
        body = call.body
        limit = priced.budget.rewrite if call.enforced else None
        if limit is not None:
            body = call.with_max_tokens(limit)
            facts.append((b"x-kvgate-max-tokens", str(limit).encode()))
            self._telemetry.rewritten(call.tenant.name)
        elif priced.budget.rewrite is not None and call.tenant.mode == "observe":
            self._telemetry.observed(call.tenant.name, "max_tokens")
        record.priority = call.priority.value
        record.prompt_tokens_counted, record.prompt_tokens_exact = priced.count.total, priced.count.exact
        record.max_tokens_charged, record.max_tokens_rewritten = priced.budget.max_tokens, limit is not None
        beginning = self._sharing.beginning(request, call.body, priced.count, priced.costs)
        return Passage(
            request,
            call,
            reply,
            record,
            priced.forgetting_ids(),
            body,
            facts,
            may_resend=self._settings.resend_max > 0,
            prefixes=self._affinity.hashes(request, call.body),
            beginning=beginning,
        )

    async def _wait_for_grant(self, ask: Ask, passage: Passage) -> Grant | Ended:
        """Queue until granted or refused, or the tenant's wait is over; leaves nothing behind otherwise."""
        call = passage.call
        decision: Grant | Refusal | None = None
        position = 0
        try:
            ticket = await self._reserve(ask, passage)
            if isinstance(ticket, RateSpent):
                return self._refusing.rate(ticket, call.tenant)
            if isinstance(ticket, Refusal):
                return self._refusing.refused(ticket, passage, waited=False)
            self._waiting[ask.request_id] = passage
            decision = ticket.decision
            if decision is None:
                if call.trace is not None:
                    call.trace.enter(Phase.QUEUE)
                await self._lending.waits(ask.request_id, passage)
                with anyio.move_on_after(max(self._left_s(call, call.wait_s_max + passage.lost_s), 0.0)):
                    decision = await ticket.granted()
                position = ticket.position
        finally:
            self._waiting.pop(ask.request_id, None)
            if not isinstance(decision, Grant):
                with anyio.move_on_after(RELEASE_S_MAX, shield=True):
                    await self._ledger.cancel(ask.request_id)
        if decision is None:
            return self._waited_too_long(passage, position)
        if isinstance(decision, Refusal):
            return self._refusing.refused(decision, passage, waited=True)
        return decision

    def _waited_too_long(self, passage: Passage, ahead: int) -> Ended:
        call, refusing = passage.call, self._refusing
        if call.deadline_s is not None and call.deadline_s < call.tenant.queue_wait_s_max:
            return Ended(Outcome.EVICTED_DEADLINE, said.deadline(call.deadline_s, ahead))
        if self._ledger.mode == "closed":
            # The shared ledger is away, and nothing may start without it: it isn't that too much is asked.
            return refusing.refused(Refusal.UNAVAILABLE, passage, waited=True)
        if not self._in_use(passage.request):
            return refusing.refused(Refusal.NO_ENGINE, passage, waited=True)  # room is not what it waited for
        return refusing.timed_out(passage, ahead)

    async def _reserve(self, ask: Ask, passage: Passage) -> Ticket | Refusal | RateSpent:
        """As the ledger's; a refusal for size that rests on an estimate is checked against the exact count, and one
        for what a forecast might grow to is not one.
        """
        ticket = await self._ledger.reserve(ask)
        tenant = passage.call.tenant
        if ticket is Refusal.NEVER_FITS and not passage.priced.count.exact:
            exact = await self._pricer.price_exactly(passage.request, passage.priced.count, tenant)
            if isinstance(exact, Answer):
                return ticket
            if exact.count.exact:
                ticket = await self._reserve_at(exact, ask, passage)
        if ticket is Refusal.NEVER_FITS:
            priced = passage.priced
            smaller = within_reach(priced, tenant, self._ledger.view())
            if smaller is not None:
                ticket = await self._reserve_at(smaller, ask, passage)
                if isinstance(ticket, Refusal):
                    passage.priced = priced  # what the client is told is of the request as it is
        return ticket

    async def _reserve_at(self, priced: Priced, ask: Ask, passage: Passage) -> Ticket | Refusal | RateSpent:
        passage.priced = priced
        return await self._ledger.reserve(
            replace(ask, costs=priced.costs, work=priced.work, tokens=priced.tokens)
        )

    def _granted(self, grant: Grant, passage: Passage) -> None:
        now = self._clock.monotonic()
        record, call = passage.record, passage.call
        waited_s = now - call.arrived_s
        self._pace.granted(call.tenant.name, now)
        self._telemetry.granted(call.tenant.name, waited_s, record.trace_id)
        passage.granted_s, record.tokens_reserved = now, passage.priced.tokens
        record.engine_id, record.queue_s, record.blocks_reserved = (
            grant.engine_id,
            waited_s,
            grant.cost.use_blocks,
        )
        record.reservation = "guaranteed" if grant.cost.expected is None else "forecast"
        record.output_tokens_expected = passage.priced.output_expected
        if not call.enforced:
            self._observed(call, record, grant.forced)
            return
        own = [fact for fact in passage.facts if fact[0] == b"x-kvgate-max-tokens"]
        own.append((b"x-kvgate-queue-ms", str(round(waited_s * 1000)).encode()))
        if self._settings.expose_backend:
            own.append((b"x-kvgate-backend", grant.engine_id.encode()))
        passage.facts = own

    def _observed(self, call: Call, record: RequestRecord, would: Refusal | Literal["queued"] | None) -> None:
        """What enforcing would have done, once for each request; of a policy that is off nobody wants to know."""
        if call.tenant.mode == "observe" and record.would is None:
            record.would = _WOULD.get(would or "granted", would or "granted")
            self._telemetry.observed(call.tenant.name, record.would)

    def _queue_again(self, ask: Ask, grant: Grant, again: Again, passage: Passage) -> Ask:
        """The next ask: same place; not the engine that just failed, if there is another one."""
        record = passage.record
        record.requeues += 1
        self._telemetry.requeued(again.trouble.value)
        if passage.call.trace is not None:
            passage.call.trace.enter(Phase.RESERVE, after=again.trouble.value)
        if again.trouble in {Trouble.RESET, Trouble.ERROR}:
            record.resends += 1
            passage.may_resend = record.resends < self._settings.resend_max
        if again.trouble is Trouble.EMPTY:
            passage.may_retry_empty = False
        if again.trouble is Late.REVOKED:
            passage.revocations += 1
            passage.lost_s += self._clock.monotonic() - passage.granted_s
        failed_here = again.trouble in {Trouble.RESET, Trouble.ERROR, Trouble.EMPTY}
        avoid = self._engines.without(passage.request.model)
        if failed_here and self._engines.available() - avoid - {grant.engine_id}:
            avoid |= {grant.engine_id}
        passage.priced = self._pricer.price_again(passage.priced, passage.call.tenant)
        return replace(ask, costs=passage.priced.costs, seq=grant.seq, rank=grant.rank, avoid=avoid)

    def _learn(self, ended: Ended, passage: Passage) -> None:
        """The engine said how long the prompt was: the counter's estimates get better by it."""
        real = passage.record.prompt_tokens_real
        if ended.outcome is Outcome.SERVED and real is not None:
            self._pricer.learn(passage.request, real)

    async def shapes_changed(self) -> None:
        """An engine of a new shape joined: price everyone in the queue on it."""
        for request_id, passage in list(self._waiting.items()):
            priced = await self._pricer.price(passage.request, passage.call.tenant)
            if isinstance(priced, Priced):  # the limit stays the one that is written already
                passage.priced = replace(passage.priced, costs=priced.costs)
                await self._ledger.reprice(request_id, self._lending.costs(passage))

    async def lengths_changed(self, tenants: frozenset[str]) -> None:
        """The answers of these have become longer, or are known again: price those in the queue by that."""
        for request_id, passage in list(self._waiting.items()):
            tenant = passage.call.tenant
            if tenant.reservation == "forecast" and tenants & {tenant.name, POOL}:
                passage.priced = self._pricer.price_again(passage.priced, tenant)
                await self._ledger.reprice(request_id, self._lending.costs(passage))

    def shared_blocks(self, engine_id: str) -> int:
        """What the reservations of this process on an engine are smaller by, because they share blocks."""
        return self._sharing.saved_blocks(engine_id)

    def _next_id(self) -> str:
        """For the ledger: no other request of any process has it."""
        return f"{self._process}-{next(self._asked)}"

    def _left_s(self, call: Call, bound_s: float) -> float:
        return call.arrived_s + bound_s - self._clock.monotonic()
