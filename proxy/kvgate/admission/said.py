"""What kvgate itself has to say: each message in one place, with what was full or wrong and what to do."""

from __future__ import annotations

from collections.abc import Mapping

from kvgate.admission.contract import Answer, Reason
from kvgate.admission.cut_off import CutOff
from kvgate_policies.kv_cost import fits_empty
from kvgate_policies.types import EngineLimits, EngineShape, KVCost, LedgerView, TenantPolicy

NO_BACKEND_RETRY_S = 2.0
"""A backend that is down is probed every second; twice that finds it if it is back."""
KEYS_RETRY_S = 5.0
"""A provider of keys that is away is asked every ten seconds."""
DRAINING_RETRY_S = 1.0
"""Another replica answers at once; a second is for the load balancer to notice."""


def queue_full(tenant: TenantPolicy, retry_after_s: float) -> Answer:
    return Answer(
        Reason.QUEUE_FULL,
        "There is no room in the KV cache now, and as many of your requests wait for it as may: "
        f"{tenant.queue_depth_max}. Retry after the time in Retry-After.",
        retry_after_s=retry_after_s,
        status=tenant.overload_status,
    )


def queue_timeout(
    tenant: TenantPolicy,
    ahead: int,
    retry_after_s: float,
    smaller: str,
    cut_off: CutOff | None = None,
) -> Answer:
    """`smaller`: how it would ask for less. `cut_off`: what it waited for is a part of the engines."""
    part = "" if cut_off is None else f" The shared ledger cannot be reached: {cut_off.share}."
    return Answer(
        Reason.QUEUE_TIMEOUT,
        f"The request waited {tenant.queue_wait_s_max:g} s for room in the KV cache, the longest allowed, with "
        f"{ahead} of your requests still ahead.{part} Retry after the time in Retry-After, or {smaller}.",
        retry_after_s=retry_after_s,
        status=tenant.overload_status,
    )


def larger_than_share(tenant: TenantPolicy, cut_off: CutOff, smaller: str | None) -> Answer:
    """It waited for the shared ledger, and nothing else would have let it start. `smaller`: how it would fit all the
    same; None where it can't.
    """
    less = "" if smaller is None else f", or ask for less: {smaller}"
    return Answer(
        Reason.LEDGER_UNAVAILABLE,
        f"The request waited {tenant.queue_wait_s_max:g} s for the shared ledger, which cannot be reached: "
        f"{cut_off.share}, and the request needs {cut_off.needs}. "
        f"Retry after the time in Retry-After{less}.",
        retry_after_s=NO_BACKEND_RETRY_S,
    )


def deadline(deadline_s: float, ahead: int) -> Answer:
    return Answer(
        Reason.DEADLINE,
        f"The request was still queued when the {deadline_s * 1000:g} ms of its x-kvgate-deadline-ms were over, with "
        f"{ahead} of your requests ahead. It was not started.",
    )


_BUDGETS = {"tokens_per_minute": "tokens", "requests_per_minute": "requests"}


def rate_spent(tenant: TenantPolicy, budget: str, retry_after_s: float) -> Answer:
    rate = getattr(tenant.rules, budget)
    return Answer(
        Reason.TENANT_RATE,
        f"Your budget of {rate} {_BUDGETS[budget]} per minute is spent. This request is covered in "
        f"{retry_after_s:.3g} s, if nothing else is sent until then.",
        retry_after_s=retry_after_s,
        exact=True,
    )


def too_large(costs: Mapping[EngineShape, KVCost], tenant: str, view: LedgerView, helps: str) -> Answer:
    """For a request that will never fit: into any engine, or into what its tenant may hold at all."""
    cost = max(costs.values(), key=lambda c: c.blocks)
    limit = next((use.blocks_limit for use in view.tenants if use.name == tenant), None)
    fits = any(shape in costs and fits_empty(costs[shape], limits) for shape, limits in _engines(view))
    if fits or not view.engines:  # a view may be a moment old
        return above_limit(cost.blocks, limit, helps)
    return never_fits(
        cost.blocks,
        max((limits.blocks for _, limits in _engines(view)), default=0),
        cost.seqs,
        max((limits.seqs for _, limits in _engines(view)), default=0),
        helps,
    )


def _engines(view: LedgerView) -> list[tuple[EngineShape, EngineLimits]]:
    return [(use.limits.shape, use.limits) for use in view.engines]


def above_limit(blocks: int, blocks_limit: int | None, helps: str) -> Answer:
    most = "fewer" if blocks_limit is None else f"at most {blocks_limit}"
    return Answer(
        Reason.NEVER_FITS,
        f"The request needs {blocks} KV blocks at its peak; the policy gives you {most} of this pool at a time. "
        f"{_sentence(helps)}",
        code="context_length_exceeded",
    )


def never_fits(blocks: int, blocks_max: int, seqs: int, seqs_max: int, helps: str) -> Answer:
    return Answer(
        Reason.NEVER_FITS,
        f"The request needs {blocks} KV blocks and {seqs} sequence slots at its peak; the largest engine has "
        f"{blocks_max} blocks and {seqs_max} slots. {_sentence(helps)}",
        code="context_length_exceeded",
    )


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def no_backend() -> Answer:
    return Answer(
        Reason.NO_BACKEND,
        "No backend of this model is up and accepting work. Retry after the time in Retry-After.",
        retry_after_s=NO_BACKEND_RETRY_S,
    )


def draining() -> Answer:
    return Answer(
        Reason.DRAINING,
        "This kvgate is shutting down and takes no new work. Retry: another replica will answer.",
        retry_after_s=DRAINING_RETRY_S,
    )


def broken_off() -> Answer:
    return Answer(
        Reason.DRAINING,
        "This kvgate shut down before the answer was complete. What was sent is incomplete. Send the request again.",
        retry_after_s=1.0,
    )


def ledger_unavailable() -> Answer:
    return Answer(
        Reason.LEDGER_UNAVAILABLE,
        "The ledger that decides on admission cannot be reached. Retry after the time in Retry-After.",
        retry_after_s=NO_BACKEND_RETRY_S,
    )


def unauthorized(what: str) -> Answer:
    return Answer(Reason.UNAUTHORIZED, f"{what}, as `Authorization: Bearer …` or as `x-api-key: …`.")


def bad_token(what: str) -> Answer:
    return Answer(
        Reason.UNAUTHORIZED,
        f"The token {what}. Send a valid one as `Authorization: Bearer …`.",
        code="invalid_token",
    )


def no_identity() -> Answer:
    return Answer(
        Reason.UNAUTHORIZED,
        "The request does not come with the name of a tenant from a proxy that is trusted to tell it.",
        code="no_identity",
    )


def keys_unavailable() -> Answer:
    return Answer(
        Reason.UNAUTHORIZED,
        "The keys that tokens are checked with can't be read now. Retry after the time in Retry-After.",
        retry_after_s=KEYS_RETRY_S,
        code="keys_unavailable",
        status=503,
    )


def unknown_class(allowed: str) -> Answer:
    return Answer(Reason.BAD_REQUEST, f"x-kvgate-class is none of: {allowed}.", param="x-kvgate-class")


def unreadable_deadline() -> Answer:
    return Answer(
        Reason.BAD_REQUEST,
        "x-kvgate-deadline-ms must be a whole number of milliseconds, counted from the request's arrival.",
        param="x-kvgate-deadline-ms",
    )


def unwritable_model() -> Answer:
    return Answer(
        Reason.BAD_REQUEST,
        "The body is nested too deeply, or has too many fields, for the model's own name to be written into it. Send "
        "a simpler body, or a name that GET /v1/models lists as the root of this one.",
        param="model",
    )


def unknown_model(model: str | None) -> Answer:
    return Answer(
        Reason.UNKNOWN_MODEL, f"The model `{model}` does not exist.", param="model", code="model_not_found"
    )


def internal_error() -> Answer:
    return Answer(
        Reason.INTERNAL_ERROR,
        "kvgate itself failed on this request; its log has the details under the x-request-id. Please report it.",
    )


def unwritable_priority() -> Answer:
    return Answer(
        Reason.BAD_REQUEST,
        "The body is nested too deeply, or has too many fields, for a priority to be written into it. Send a "
        "simpler body.",
    )


def unwritable_limit() -> Answer:
    return Answer(
        Reason.BAD_REQUEST,
        "The body is nested too deeply, or has too many fields, for an output limit to be written into it. Send "
        "max_tokens, or a simpler body.",
    )


def upstream_failed() -> Answer:
    return Answer(
        Reason.UPSTREAM_FAILED,
        "The backend broke off before it had answered, and so did the one it was sent to again. The "
        "request was not completed.",
    )


def upstream_empty() -> Answer:
    return Answer(
        Reason.UPSTREAM_FAILED,
        "The backends answered without a single token, as they do while they shut down. The request was not "
        "completed; it is safe to send it again.",
    )


def upstream_silent(first_byte_s: float) -> Answer:
    return Answer(
        Reason.UPSTREAM_TIMEOUT,
        f"The backend was given the request and sent nothing for {first_byte_s:g} s. The request was given up.",
    )


def overall_timeout(overall_s: float) -> Answer:
    return Answer(
        Reason.UPSTREAM_TIMEOUT,
        f"The request was not complete {overall_s:g} s after it arrived, queue included, and was given up.",
    )


def stream_stalled(idle_s: float) -> Answer:
    return Answer(
        Reason.UPSTREAM_TIMEOUT,
        f"The backend sent nothing for {idle_s:g} s in the middle of the answer. What was sent is incomplete.",
    )


def stream_broken() -> Answer:
    return Answer(
        Reason.UPSTREAM_FAILED,
        "The connection to the backend broke in the middle of the answer. What was sent is incomplete.",
    )
