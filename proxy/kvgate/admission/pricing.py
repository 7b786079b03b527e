"""What does a request cost on each shape of engine, and is there one that could ever hold it?

An estimate may reserve a little too much; it must never refuse. So wherever an estimated prompt would cross a
bound (the window, the rest of the window that makes a limit "as long as it takes", the largest engine), the
engine is asked for the exact count first. If that cannot be had, the estimate is clamped to the window and the
request goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvgate.admission.contract import Answer, Reason
from kvgate.engines.base import Engines
from kvgate.forecasting import Forecaster
from kvgate.ledger.base import Served
from kvgate.tokens.base import TokenCounter
from kvgate_policies.forecast_request import Outlook
from kvgate_policies.kv_cost import blocks_decoding, price, price_pooling
from kvgate_policies.tenancy import OutputBudget, output_budget
from kvgate_policies.types import (
    TO_WINDOW,
    Endpoint,
    EngineShape,
    InferenceRequest,
    KVCost,
    TenantPolicy,
    TokenCount,
)


@dataclass(frozen=True, slots=True)
class Priced:
    """A request with its price tag."""

    costs: Mapping[EngineShape, KVCost]
    count: TokenCount
    budget: OutputBudget
    outputs: int = 1
    """Sequences that are generated, all prompts together."""
    outlook: Outlook | None = None
    """What forecasts know it by; None for what generates nothing."""
    output_expected: int | None = None
    """Output tokens of all sequences, by a forecast; None for a tenant without."""

    def forgetting_ids(self) -> Priced:
        """Without the prompt's token ids, which nobody needs while it waits."""
        return self if self.count.ids is None else replace(self, count=replace(self.count, ids=None))

    @property
    def output_tokens(self) -> int:
        """Expected of all sequences: as many as are charged, while nothing better is known."""
        return self.outputs * self.budget.max_tokens if self.output_expected is None else self.output_expected

    @property
    def work(self) -> int:
        """Service that is charged for it, tokens; see `service`."""
        return service(self.count.total, self.output_tokens)

    @property
    def tokens(self) -> int:
        """What the tenant's budget of tokens is charged."""
        return self.count.total + self.output_tokens


def service(prompt_tokens: int, output_tokens: int) -> int:
    """Tokens of service: an output token takes about as much of an engine as two of a prompt.

    Source of the weights: Sheng et al., "Fairness in Serving Large Language Models" (VTC), OSDI 2024.
    """
    return max(prompt_tokens + 2 * output_tokens, 1)


def served(priced: Priced, prompt_tokens: int | None, output_tokens: int) -> Served:
    """What a request really took; the prompt as it was counted, where the engine did not say."""
    prompt = priced.count.total if prompt_tokens is None else prompt_tokens
    return Served(service(prompt, output_tokens), prompt + output_tokens)


class Pricer:
    def __init__(self, counter: TokenCounter, engines: Engines, forecaster: Forecaster | None = None) -> None:
        """Without a forecaster every reservation is guaranteed."""
        self._counter = counter
        self._engines = engines
        self._forecaster = forecaster

    async def price(self, request: InferenceRequest, tenant: TenantPolicy) -> Priced | Answer:
        """The price on every shape known, or why no engine could ever take the request."""
        count = await self._counter.count(request)
        shapes = self._engines.shapes()
        if not count.exact and _near_a_bound(request, count, shapes):
            return await self.price_exactly(request, count, tenant)
        return self._expected(price_counted(request, count, shapes, tenant), tenant)

    async def price_exactly(
        self, request: InferenceRequest, estimate: TokenCount, tenant: TenantPolicy
    ) -> Priced | Answer:
        """As `price`, by the engine's own count; by the estimate, clamped to the window, if there is none."""
        shapes = self._engines.shapes()
        exact = await self._counter.count_exactly(request)
        priced = price_counted(request, exact or _clamped(estimate, shapes), shapes, tenant)
        return self._expected(priced, tenant)

    def price_again(self, priced: Priced, tenant: TenantPolicy) -> Priced:
        """By what is known of lengths now."""
        forecaster, outlook = self._forecaster, priced.outlook
        if forecaster is None or outlook is None or tenant.reservation == "guaranteed":
            return priced
        costs = {
            shape: forecaster.cost(tenant, outlook, shape, replace(cost, expected=None))
            for shape, cost in priced.costs.items()
        }
        return replace(priced, costs=costs, output_expected=forecaster.expected_output(tenant, outlook))

    def _expected(self, priced: Priced | Answer, tenant: TenantPolicy) -> Priced | Answer:
        return priced if isinstance(priced, Answer) else self.price_again(priced, tenant)

    async def price_unbounded(self, request: InferenceRequest) -> Priced:
        """Of what no engine takes, but is sent to one all the same: it will be refused there, at once."""
        count = await self._counter.count(request)
        costs = {shape: KVCost(1, 1, 0) for shape in self._engines.shapes()}
        return Priced(costs, count, OutputBudget(1, None), _outputs(request, count))

    def learn(self, request: InferenceRequest, prompt_tokens: int) -> None:
        """The engine's own count, from the answer."""
        self._counter.learn(request, prompt_tokens)


def price_counted(
    request: InferenceRequest, count: TokenCount, shapes: frozenset[EngineShape], tenant: TenantPolicy
) -> Priced | Answer:
    """Price a counted request.

    An engine whose window the prompt fills is left out, and so is one that would answer 400 for the limit when
    a larger one takes it. The limit that is written has to suit all that are left: the smallest window rules.
    """
    if request.prompt_tokens_max == TO_WINDOW:
        # An engine cuts to its own window, and a prompt that fills it is priced as all of it.
        count = TokenCount(tuple(min(t, _longest_window(shapes) - 1) for t in count.tokens), count.exact)
    cut = request.prompt_tokens_max == TO_WINDOW
    longest = 0 if cut else max(count.tokens, default=0)
    pooled = request.endpoint is Endpoint.POOLING
    roomy = {shape for shape in shapes if longest < shape.max_model_len + pooled}
    if not roomy:
        return _prompt_too_long(longest, _longest_window(shapes))
    asked = request.max_tokens
    takers = {shape for shape in roomy if asked is None or asked <= shape.max_model_len} or roomy
    window = min(shape.max_model_len for shape in takers)
    budget = output_budget(request.endpoint, asked, count, window, tenant, min_tokens=request.min_tokens)
    costs = {shape: _cost(request, count, budget, shape) for shape in takers}
    return Priced(costs, count, budget, _outputs(request, count), _outlook(request, count, budget))


def _outlook(request: InferenceRequest, count: TokenCount, budget: OutputBudget) -> Outlook | None:
    if request.endpoint is Endpoint.POOLING or not count.tokens:
        return None
    return Outlook(
        count.tokens,
        budget.max_tokens,
        request.n,
        request.min_tokens,
        request.ignore_eos,
        shares_prompt=count.exact,
    )


def _outputs(request: InferenceRequest, count: TokenCount) -> int:
    return 0 if request.endpoint is Endpoint.POOLING else request.n * len(count.tokens)


def reprice(
    request: InferenceRequest, priced: Priced, prompt_tokens: int, shape: EngineShape
) -> KVCost | None:
    """The cost once the engine said how long the prompt really is; None if it was no longer than counted.

    It says so with a token: what only reading the prompt took is over.
    """
    if prompt_tokens <= priced.count.total or len(priced.count.tokens) != 1:
        return None
    truth = TokenCount((min(prompt_tokens, shape.max_model_len),), exact=True)
    cost = _cost(request, truth, priced.budget, shape)
    left = blocks_left(request, replace(priced, count=truth), shape)
    return cost if left is None else replace(cost, blocks=left)


def blocks_left(request: InferenceRequest, priced: Priced, shape: EngineShape) -> int | None:
    """Blocks that the request still needs after its first token; None where those are as many as before."""
    if not shape.groups or request.endpoint is Endpoint.POOLING:
        return None
    return blocks_decoding(shape, priced.count.tokens, priced.budget.max_tokens, request.n)


def _cost(request: InferenceRequest, count: TokenCount, budget: OutputBudget, shape: EngineShape) -> KVCost:
    if request.endpoint is Endpoint.POOLING:
        return price_pooling(shape, count.tokens)
    if request.n > 1 and not count.exact:
        # A longer prompt may share one block more and so cost less: an estimate must not count on it.
        shape = replace(shape, prefix_caching=False)
    return price(shape, count.tokens, budget.max_tokens, request.n)


def _longest_window(shapes: frozenset[EngineShape]) -> int:
    return max((shape.max_model_len for shape in shapes), default=0)


def _near_a_bound(request: InferenceRequest, count: TokenCount, shapes: frozenset[EngineShape]) -> bool:
    if request.prompt_tokens_max == TO_WINDOW:
        return False
    longest = max(count.tokens, default=0)
    windows = [shape.max_model_len for shape in shapes]
    if any(longest >= window for window in windows):
        return True
    asked = request.max_tokens
    return asked is not None and any(window - longest <= asked <= window for window in windows)


def _clamped(estimate: TokenCount, shapes: frozenset[EngineShape]) -> TokenCount:
    window = _longest_window(shapes)
    return TokenCount(tuple(min(tokens, max(window - 1, 0)) for tokens in estimate.tokens), exact=False)


def _prompt_too_long(longest: int, window: int) -> Answer:
    return Answer(
        Reason.NEVER_FITS,
        f"This model's maximum context length is {window} tokens. However, your prompt contains {longest} input "
        "tokens, which leaves no room for output. Please shorten the prompt.",
        param="input_tokens",
        code="context_length_exceeded",
    )
