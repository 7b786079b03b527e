"""`/v1/responses` as vLLM 0.32 writes it: named events with a sequence number, and no [DONE]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvgate.sim.dialect import Dialect, event
from kvgate.sim.exchange import compact

if TYPE_CHECKING:
    from kvgate.sim.errors import RequestRefused
    from kvgate.sim.generation import Generation

_STATUS = {"stop": "completed", "length": "incomplete", "abort": "cancelled", None: "in_progress"}
_EVERY_TURN_EMPTY: dict[str, Any] = {"input_tokens_per_turn": [], "cached_tokens_per_turn": []}


class Response(Dialect):
    def __init__(self, generation: Generation, request_id: str, created_at: int) -> None:
        super().__init__(generation, f"resp_{request_id}", created_at)
        self._item_id = f"msg_{request_id}"
        self._sequence = 0

    def _event(self, kind: str, fields: dict[str, Any]) -> str:
        payload = {**fields, "sequence_number": self._sequence, "type": kind}
        self._sequence += 1
        return event(kind, compact(payload))

    def preamble(self) -> str:
        return "".join(
            self._event(kind, {"response": self.document()})
            for kind in ("response.created", "response.in_progress")
        )

    def opening(self) -> str:
        item = {**self._item("in_progress"), "content": []}
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return self._event("response.output_item.added", {"item": item, "output_index": 0}) + self._event(
            "response.content_part.added",
            {"content_index": 0, "item_id": self._item_id, "output_index": 0, "part": part},
        )

    def chunk(self, index: int, text: str, finish: str | None) -> str:
        del finish
        if not text:
            return ""
        fields = {"content_index": 0, "delta": text, "item_id": self._item_id, "logprobs": []}
        return self._event("response.output_text.delta", {**fields, "output_index": index})

    def closing(self) -> str:
        where = {"content_index": 0, "item_id": self._item_id, "output_index": 0}
        frames = self._open()
        frames += self._event("response.output_text.done", {**where, "logprobs": [], "text": self.text_of(0)})
        frames += self._event("response.content_part.done", {**where, "part": self._part()})
        item = self._item("completed")
        frames += self._event("response.output_item.done", {"item": item, "output_index": 0})
        return frames + self._event("response.completed", {"response": self.document()})

    def error_frames(self, error: RequestRefused) -> str:
        return event("error", compact({**error.body, "type": "error"}))

    def _part(self) -> dict[str, Any]:
        return {"annotations": [], "text": self.text_of(0), "type": "output_text", "logprobs": None}

    def _item(self, status: str) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "content": [self._part()],
            "role": "assistant",
            "status": status,
            "type": "message",
            "phase": None,
        }

    def _usage(self) -> dict[str, Any]:
        prompt, completion = self.generation.prompt_tokens, self.tokens[0]
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0, **_EVERY_TURN_EMPTY},
            "output_tokens": completion,
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": prompt + completion,
        }

    def document(self) -> dict[str, Any]:
        finish = self.finish[0]
        return {
            "id": self.request_id,
            "created_at": self.created_at,
            "incomplete_details": {"reason": "max_output_tokens"} if finish == "length" else None,
            "instructions": None,
            "metadata": None,
            "model": self.generation.model,
            "object": "response",
            "output": [self._item("completed")] if finish else [],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": self.generation.choices[0].max_tokens,
            "max_tool_calls": None,
            "previous_response_id": None,
            "prompt": None,
            "reasoning": None,
            "service_tier": "auto",
            "status": _STATUS[finish],
            "text": None,
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": self._usage() if finish else None,
            "user": None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }
