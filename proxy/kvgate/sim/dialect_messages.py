"""`/v1/messages` (Anthropic) as vLLM 0.32 writes it: named events, its own error shape, and no [DONE]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvgate.sim.dialect import Dialect, event
from kvgate.sim.exchange import compact

if TYPE_CHECKING:
    from kvgate.sim.errors import RequestRefused
    from kvgate.sim.generation import Generation

_STOP_REASON = {"stop": "end_turn", "length": "max_tokens", "abort": None, None: None}


class Message(Dialect):
    def __init__(self, generation: Generation, request_id: str, created_at: int) -> None:
        super().__init__(generation, f"chatcmpl-{request_id}", created_at)

    def _usage(self, output_tokens: int) -> dict[str, int]:
        return {"input_tokens": self.generation.prompt_tokens, "output_tokens": output_tokens}

    def opening(self) -> str:
        message: dict[str, Any] = {
            "id": self.request_id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self.generation.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(0),
        }
        block = {"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 0}
        start = event("message_start", compact({"type": "message_start", "message": message}))
        return start + event("content_block_start", compact(block))

    def chunk(self, index: int, text: str, finish: str | None) -> str:
        del finish
        if not text:
            return ""
        delta = {"type": "text_delta", "text": text}
        payload = {"type": "content_block_delta", "delta": delta, "index": index}
        return event("content_block_delta", compact(payload))

    def closing(self) -> str:
        delta = {"stop_reason": _STOP_REASON[self.finish[0]], "stop_sequence": None}
        usage = self._usage(self.tokens[0])
        return (
            self._open()
            + event("content_block_stop", compact({"type": "content_block_stop", "index": 0}))
            + event("message_delta", compact({"type": "message_delta", "delta": delta, "usage": usage}))
            + event("message_stop", compact({"type": "message_stop"}))
        )

    def document(self) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": self.text_of(0)}],
            "model": self.generation.model,
            "stop_reason": _STOP_REASON[self.finish[0]],
            "usage": self._usage(self.tokens[0]),
        }

    def error_frames(self, error: RequestRefused) -> str:
        return event("error", compact(error.anthropic_body))
