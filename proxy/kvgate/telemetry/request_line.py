"""A line of the request log: which numbers and names it has. Written by `request_log`, read by `kvgate.traffic`.

It has all that `kvgate replay` needs to put the same requests to another policy: when a request came and left, what it
asked for, how long its prompt and its answer were. A field that is added has a default: older logs stay readable.

Never text of a prompt or an answer, and no key: it is made from a `RequestRecord`, which has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvgate.telemetry.record import NAME_CHARS_MAX

if TYPE_CHECKING:
    from kvgate.telemetry.record import RequestRecord


class LoggedRequest(msgspec.Struct, omit_defaults=True, frozen=True):
    """One line. What was not known when the request ended is absent."""

    arrived: float
    """Unix time of the arrival, seconds."""
    tenant: str
    endpoint: str
    outcome: str
    total_s: float
    """From arrival to the end."""
    pool: str | None = None
    model: str | None = None
    """As the client wrote it."""
    class_: str | None = msgspec.field(default=None, name="class")
    """The class it queued in."""
    stream: bool = False
    reason: str | None = None
    status: int | None = None
    engine: str | None = None
    """That of the last grant."""
    queue_s: float | None = None
    """From arrival to the last grant."""
    ttft_s: float | None = None
    """From arrival to the first token."""
    prompts: int = 1
    n: int = 1
    """Sequences for each prompt."""
    prompt_tokens: int | None = None
    """By the engine's usage, all prompts together."""
    prompt_tokens_counted: int | None = None
    """What the price was computed from."""
    prompt_tokens_exact: bool = False
    """Whether that was the engine's own count."""
    completion_tokens: int | None = None
    """Of all sequences together."""
    max_tokens_asked: int | None = None
    """The client's own limit for one sequence."""
    min_tokens: int = 0
    """Output tokens of a sequence that it asked for at least."""
    ignore_eos: bool = False
    """Whether only the limit ended its answers."""
    max_tokens_charged: int | None = None
    """The limit for one sequence that was reserved."""
    blocks_reserved: int | None = None
    tokens_reserved: int | None = None
    reservation: str | None = None
    """`guaranteed` or `forecast`."""
    output_tokens_expected: int | None = None
    """By a forecast, of all sequences together."""
    requeues: int = 0
    class_asked: str | None = None
    """The class that the client asked for, if it did."""
    deadline_s: float | None = None
    """The longest wait that the client asked for, if it did; from arrival."""
    would: str | None = None
    """In mode observe, what enforcing would have done."""


def logged(record: RequestRecord, now: float) -> LoggedRequest:
    """The line of a request that ends now (Unix time), `total_s` after it arrived. Pure."""
    total_s = record.total_s or 0.0
    return LoggedRequest(
        arrived=round(now - total_s, 4),
        tenant=_name(record.tenant) or "",
        endpoint=record.endpoint.value if record.endpoint else "",
        outcome=record.outcome.value if record.outcome else "",
        total_s=round(total_s, 4),
        pool=record.pool,
        model=_name(record.model),
        class_=record.priority,
        stream=record.stream,
        reason=record.reason,
        status=record.status,
        engine=record.engine_id,
        queue_s=_rounded(record.queue_s),
        ttft_s=_rounded(record.ttft_s),
        prompts=record.prompts or 1,
        n=record.n or 1,
        prompt_tokens=record.prompt_tokens_real,
        prompt_tokens_counted=record.prompt_tokens_counted,
        prompt_tokens_exact=record.prompt_tokens_exact,
        completion_tokens=record.completion_tokens,
        max_tokens_asked=record.max_tokens_asked,
        min_tokens=record.min_tokens or 0,
        ignore_eos=record.ignore_eos or False,
        max_tokens_charged=record.max_tokens_charged,
        blocks_reserved=record.blocks_reserved,
        tokens_reserved=record.tokens_reserved,
        reservation=record.reservation,
        output_tokens_expected=record.output_tokens_expected,
        requeues=record.requeues,
        class_asked=record.priority_asked,
        deadline_s=_rounded(record.deadline_s),
        would=record.would,
    )


def _name(text: str | None) -> str | None:
    """Cut to a bound, and without what no UTF-8 has."""
    return None if text is None else text[:NAME_CHARS_MAX].encode(errors="replace").decode()


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
