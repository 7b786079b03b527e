"""The record of one request: filled in along the line, and read once at the end by metrics and the log.

It carries numbers and names only. Never a prompt, an answer, or a key: what is not in it cannot leak.
Fields stay None until they are known; a request that was refused early has few of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvgate_policies.types import Endpoint, Outcome

NAME_CHARS_MAX = 200
"""Of a name the client chose, in a log line: real model names are below 100 characters."""


@dataclass(slots=True)
class RequestRecord:
    request_id: str
    tenant: str = "anonymous"
    endpoint: Endpoint | None = None
    """None when the path was none of ours."""
    pool: str | None = None
    """The pool it belongs to; None when it ended before that was known."""
    model: str | None = None
    """As the client wrote it: for the log only, never a label."""
    stream: bool = False

    outcome: Outcome | None = None
    reason: str | None = None
    """`x-kvgate-reason`, when kvgate itself answered."""
    told: str | None = None
    """The message of that answer: for the console. Not in the log, where the reason says it in a word."""
    status: int | None = None
    """The HTTP status that went to the client; None when it left before one was sent."""
    engine_id: str | None = None
    """The engine of the last grant."""

    prompt_tokens_counted: int | None = None
    """What the price was computed from."""
    prompt_tokens_exact: bool = False
    """Whether that was the engine's own count."""
    prompt_tokens_real: int | None = None
    """The engine's `usage.prompt_tokens`."""
    completion_tokens: int | None = None
    """The engine's `usage.completion_tokens`, or else the tokens seen in the stream."""
    prompts: int | None = None
    """Prompts in the request."""
    n: int | None = None
    """Sequences for each prompt."""
    max_tokens_asked: int | None = None
    """The client's own limit for one sequence; None when it set none."""
    min_tokens: int | None = None
    """Output tokens of a sequence that it asked for at least; None when it asked for none."""
    ignore_eos: bool | None = None
    """True when only the limit ends its answers."""
    max_tokens_charged: int | None = None
    """Output tokens of one sequence that were reserved."""
    max_tokens_rewritten: bool = False
    blocks_reserved: int | None = None
    tokens_reserved: int | None = None
    """The prompt as it was counted, and the limit of every sequence; by a forecast, what they are expected to have."""
    reservation: str | None = None
    """`guaranteed` or `forecast`, as it was granted last."""
    output_tokens_expected: int | None = None
    """By a forecast, all sequences together."""

    queue_s: float | None = None
    """From arrival to the last grant, or to the end without one."""
    engine_ttft_s: float | None = None
    """From the grant to the first token."""
    ttft_s: float | None = None
    """From arrival to the first token."""
    total_s: float | None = None
    """From arrival to the end."""
    priority: str | None = None
    """The class it queued in."""
    priority_asked: str | None = None
    """The class that the client asked for; None when it asked for none."""
    deadline_s: float | None = None
    """The longest wait in the queue that the client asked for, from arrival; None when it asked for none."""
    would: str | None = None
    """In mode observe, what enforcing would have done to it: `granted` at once, `queued`, or a refusal."""
    requeues: int = 0
    """How often it went back to the queue after a grant."""
    resends: int = 0
    """How often it was sent again after it had been sent and nothing came back."""
    bytes_out: int = 0
    """Body bytes sent to the client."""
    trace_id: str | None = None
    """Of its trace, in hexadecimal, when it is sampled: for log lines and exemplars."""

    def as_log_fields(self) -> dict[str, object]:
        """The known fields for a log line: times to a tenth of a millisecond, names cut to a bound."""
        named = zip(_FIELD_NAMES, _fields_of(self), strict=True)
        return {name: _loggable(value) for name, value in named if value is not None}


def _loggable(value: object) -> object:
    kind = type(value)
    if kind is float:
        return round(value, 4)  # type: ignore[call-overload]
    return value[:NAME_CHARS_MAX] if kind is str else value  # type: ignore[index]


_FIELD_NAMES = tuple(field.name for field in fields(RequestRecord) if field.name != "told")
_fields_of = attrgetter(*_FIELD_NAMES)
