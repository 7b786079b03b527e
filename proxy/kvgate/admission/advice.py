"""What would help a client whose request is too large: what of it, made smaller, would let it in. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from kvgate.admission.oversize import within_reach
from kvgate.admission.pricing import Priced, price_counted
from kvgate_policies.kv_cost import fits_empty
from kvgate_policies.types import Endpoint, InferenceRequest, LedgerView, TenantPolicy, TokenCount

Variant = tuple[str, InferenceRequest, TokenCount]
"""What a client would do, and its request then."""


def what_helps(
    request: InferenceRequest, priced: Priced, tenant: TenantPolicy, is_in: Callable[[Priced], bool]
) -> tuple[str, bool]:
    """What to do, in words, such as `lower max_tokens or n`; and whether one of that by itself is enough.

    `is_in` says of a price whether it is small enough.
    """
    shapes = frozenset(priced.costs)
    variants = list(_variants(request, priced.count))
    enough: list[str] = []
    for words, smaller, count in variants:
        price = price_counted(smaller, count, shapes, tenant)
        if isinstance(price, Priced) and is_in(price):
            enough.append(words)
    if not enough:
        return " and ".join(words for words, _, _ in variants if words != _both(request)), False
    if _limit(request) in enough and _both(request) in enough:
        enough.remove(_both(request))
    return " or ".join(enough), True


def may_start(priced: Priced, tenant: TenantPolicy, view: LedgerView) -> bool:
    """Whether an engine would hold it, and the limit of its tenant."""
    limit = next((use.blocks_limit for use in view.tenants if use.name == tenant.name), None)
    fits = any(
        cost is not None and fits_empty(cost, use.limits) and (limit is None or cost.blocks <= limit)
        for use in view.engines
        for cost in (priced.costs.get(use.limits.shape),)
    )
    return fits or within_reach(priced, tenant, view) is not None


def smaller(request: InferenceRequest) -> str:
    """What a client that waited in vain might do, in words: whatever of its request makes it large."""
    parts = []
    if len(request.prompts) > 1:
        parts.append(_FEWER)
    if request.n > 1:
        parts.append(_N)
    if _has_limit(request):
        parts.append(_limit(request))
    return " or ".join(parts or [_SHORTER])


_FEWER, _N, _SHORTER = "send fewer prompts in one request", "lower n", "shorten the prompt"


def _variants(request: InferenceRequest, count: TokenCount) -> Iterator[Variant]:
    """Of each thing that makes a request large the least that can be asked for."""
    if len(count.tokens) > 1:
        yield _FEWER, request, replace(count, tokens=(max(count.tokens),), ids=None)
    if request.n > 1:
        yield _N, replace(request, n=1), count
    if _has_limit(request):
        yield _limit(request), replace(request, max_tokens=max(request.min_tokens, 1)), count
        if request.min_tokens > 1:
            limit = None if request.max_tokens is None else 1
            yield _both(request), replace(request, min_tokens=0, max_tokens=limit), count
    yield _SHORTER, request, replace(count, tokens=(1,) * len(count.tokens), ids=None)


def _has_limit(request: InferenceRequest) -> bool:
    """Whether its output is long by its limit, or for want of one: `/v1/completions` has a short one by itself."""
    unset = request.max_tokens is None
    return request.endpoint is not Endpoint.POOLING and not (
        unset and request.endpoint is Endpoint.COMPLETIONS
    )


def _limit(request: InferenceRequest) -> str:
    return f"{'set' if request.max_tokens is None else 'lower'} {request.max_tokens_field}"


def _both(request: InferenceRequest) -> str:
    """A limit below `min_tokens` is none that vLLM takes."""
    return "lower min_tokens" + ("" if request.max_tokens is None else f" and {request.max_tokens_field}")
