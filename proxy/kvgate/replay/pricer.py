"""The one place where a replayed request gets its price and its ask: by the same functions as over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.admission.asking import ask_for
from kvgate.admission.contract import Answer, Call
from kvgate.admission.pace import Pace
from kvgate.admission.pricing import Priced, price_counted
from kvgate_policies.types import CLASSES, InferenceRequest, PriorityClass, PromptSize, TokenCount

if TYPE_CHECKING:
    from kvgate.ledger.base import Ask
    from kvgate.replay.offered import Offered
    from kvgate_policies.types import EngineShape, TenantPolicy

_NO_PROMPT = PromptSize()


PRICES_MAX = 100_000
"""Prices that are remembered, some 500 bytes each: lengths come again and again."""


class Pricer:
    """Prices for the engines of one pool. A tenant's policy must not change meanwhile."""

    def __init__(self, shapes: frozenset[EngineShape]) -> None:
        self._shapes = shapes
        self._pace = Pace()
        self._prices: dict[tuple[object, ...], Priced | Answer] = {}

    def price(self, offered: Offered, tenant: TenantPolicy) -> Priced | Answer:
        """The price, or why no engine could ever take it: then by the exact count, as the engine would be asked."""
        tokens = offered.prompt_tokens if offered.counted_tokens is None else offered.counted_tokens
        what = (
            tokens,
            offered.min_tokens,
            offered.ignore_eos,
            offered.max_tokens,
            offered.exact,
            offered.prompts,
            offered.n,
            offered.endpoint,
            tenant.name,
        )
        known = self._prices.get(what)
        if known is not None:
            return known
        count = TokenCount((tokens,) * offered.prompts, offered.exact)
        priced = price_counted(_request(offered), count, self._shapes, tenant)
        if isinstance(priced, Answer) and not offered.exact:
            return self.price_exactly(offered, tenant)
        if len(self._prices) >= PRICES_MAX:
            self._prices.clear()
        self._prices[what] = priced
        return priced

    def price_exactly(self, offered: Offered, tenant: TenantPolicy) -> Priced | Answer:
        count = TokenCount((offered.prompt_tokens,) * offered.prompts, exact=True)
        return price_counted(_request(offered), count, self._shapes, tenant)

    def ask(self, request_id: str, call: Call, priced: Priced) -> Ask:
        """What its ledger is asked at its arrival."""
        return ask_for(
            request_id,
            call,
            priced,
            mean_work=self._pace.asked(call.tenant.name, priced.work),
            left_s=call.wait_s_max,
            avoid=frozenset(),
        )


def call_of(offered: Offered, tenant: TenantPolicy) -> Call:
    """The HTTP side of it, of which only times and whose it is matter here."""
    return Call(
        "POST",
        "",
        (),
        b"",
        offered.arrived_s,
        tenant,
        _lower(offered.priority, tenant.priority),
        offered.deadline_s,
        _unchanged,
    )


def _lower(asked: PriorityClass | None, of_tenant: PriorityClass) -> PriorityClass:
    return of_tenant if asked is None else max(asked, of_tenant, key=CLASSES.index)


def _unchanged(_: int) -> bytes:
    return b""


def _request(offered: Offered) -> InferenceRequest:
    return InferenceRequest(
        offered.endpoint,
        None,
        offered.stream,
        (_NO_PROMPT,) * offered.prompts,
        offered.max_tokens,
        "max_tokens",
        offered.n,
        min_tokens=offered.min_tokens,
        ignore_eos=offered.ignore_eos,
    )
