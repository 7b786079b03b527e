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
from kvgate.ledger.base import Served
from kvgate.tokens.base import TokenCounter
from kvgate_policies.kv_cost import price, price_pooling
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

    @property
    def output_tokens(self) -> int:
        """Expected of all sequences: as many as are charged, while nothing better is known."""
        return self.outputs * self.budget.max_tokens

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
    def __init__(self, counter: TokenCounter, engines: Engines) -> None:
        self._counter = counter
        self._engines = engines

    async def price(self, request: InferenceRequest, tenant: TenantPolicy) -> Priced | Answer:
        """The price on every shape known, or why no engine could ever take the request."""
        count = await self._counter.count(request)
        shapes = self._engines.shapes()
        if not count.exact and _near_a_bound(request, count, shapes):
            return await self.price_exactly(request, count, tenant)
        return price_counted(request, count, shapes, tenant)

    async def price_exactly(
        self, request: InferenceRequest, estimate: TokenCount, tenant: TenantPolicy
    ) -> Priced | Answer:
        """As `price`, by the engine's own count; by the estimate, clamped to the window, if there is none."""
        shapes = self._engines.shapes()
        exact = await self._counter.count_exactly(request)
        return price_counted(request, exact or _clamped(estimate, shapes), shapes, tenant)

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
    return Priced(costs, count, budget, _outputs(request, count))


def _outputs(request: InferenceRequest, count: TokenCount) -> int:
    return 0 if request.endpoint is Endpoint.POOLING else request.n * len(count.tokens)


def reprice(
    request: InferenceRequest, priced: Priced, prompt_tokens: int, shape: EngineShape
) -> KVCost | None:
    """The cost once the engine said how long the prompt really is; None if it was no longer than counted."""
    if prompt_tokens <= priced.count.total or len(priced.count.tokens) != 1:
        return None
    truth = TokenCount((min(prompt_tokens, shape.max_model_len),), exact=True)
    return _cost(request, truth, priced.budget, shape)


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
