"""The last event of a stream that kvgate has to end: one error, in the dialect of the stream.

After the first byte a failure can't change the status any more, and ending in silence would look like a short
answer. No `[DONE]`, no `message_stop`: those say that the answer is whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kvgate.api.answers import error_body, openai_error, status_of
from kvgate.api.routes import Dialect

if TYPE_CHECKING:
    from kvgate.admission import Answer

__all__ = ["Dialect", "terminal_event"]


def terminal_event(
    dialect: Dialect,
    answer: Answer,
    request_id: str,
    *,
    at_boundary: bool = False,
    created_s: int = 0,
    response_id: str | None = None,
    model: str | None = None,
    sequence_number: int | None = None,
) -> bytes:
    """One error event.

    `at_boundary` tells whether the last byte sent is known to have ended an event; if not, an empty line goes
    first, so that a broken event does not swallow this one (in the wrong place it does no harm). The rest is
    for the Responses API: unix time, and what is known of the response from the events before
    (`SSEMeter.response_id`, `response_model`, and the last event's `sequence_number`, counted on here).
    """
    lead = b"" if at_boundary else b"\n\n"
    if dialect is Dialect.RESPONSES:
        failed = _failed_response(answer, response_id or f"resp_{request_id}", model, created_s)
        number = sequence_number + 1 if sequence_number is not None else 0
        event = {"type": "response.failed", "sequence_number": number, "response": failed}
        return lead + _event(b"response.failed", event)
    if dialect is Dialect.ANTHROPIC:
        return lead + _event(b"error", error_body(answer, dialect, request_id))
    return lead + b"data: " + msgspec.json.encode({"error": openai_error(answer)}) + b"\n\n"


def _event(name: bytes, data: dict[str, Any]) -> bytes:
    return b"event: " + name + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


def _failed_response(answer: Answer, response_id: str, model: str | None, created_s: int) -> dict[str, Any]:
    """OpenAI's response object. Its error codes are a closed list, hence not the reason's own code."""
    code = "rate_limit_exceeded" if status_of(answer) == 429 else "server_error"
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_s,
        "status": "failed",
        "error": {"code": code, "message": answer.message},
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model or "",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }
