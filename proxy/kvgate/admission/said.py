"""What kvgate itself has to say: each message in one place, with what was full or wrong and what to do."""

from __future__ import annotations

from kvgate.admission.contract import Answer, Reason
from kvgate_policies.types import TenantPolicy

NO_BACKEND_RETRY_S = 2.0
"""A backend that is down is probed every second; twice that finds it if it is back."""
DRAINING_RETRY_S = 1.0
"""Another replica answers at once; a second is for the load balancer to notice."""


def queue_full(tenant: TenantPolicy, depth: int, retry_after_s: float) -> Answer:
    return Answer(
        Reason.QUEUE_FULL,
        f"The KV cache of every engine is reserved and the queue is full ({depth} waiting, at most "
        f"{tenant.queue_depth_max}). Retry after the time in Retry-After.",
        retry_after_s=retry_after_s,
        status=tenant.overload_status,
    )


def queue_timeout(tenant: TenantPolicy, ahead: int, retry_after_s: float) -> Answer:
    return Answer(
        Reason.QUEUE_TIMEOUT,
        f"The request waited {tenant.queue_wait_s_max:g} s for room in the KV cache, the longest allowed, with "
        f"{ahead} requests still ahead. Retry after the time in Retry-After, or lower max_tokens.",
        retry_after_s=retry_after_s,
        status=tenant.overload_status,
    )


def never_fits(blocks: int, blocks_max: int, seqs: int, seqs_max: int) -> Answer:
    return Answer(
        Reason.NEVER_FITS,
        f"The request needs {blocks} KV blocks and {seqs} sequence slots at its peak; the largest engine has "
        f"{blocks_max} blocks and {seqs_max} slots. Lower max_tokens or n, or shorten the prompt.",
        code="context_length_exceeded",
    )


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


def unknown_model(model: str | None) -> Answer:
    return Answer(
        Reason.UNKNOWN_MODEL, f"The model `{model}` does not exist.", param="model", code="model_not_found"
    )


def internal_error() -> Answer:
    return Answer(
        Reason.INTERNAL_ERROR,
        "kvgate itself failed on this request; its log has the details under the x-request-id. Please report it.",
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
