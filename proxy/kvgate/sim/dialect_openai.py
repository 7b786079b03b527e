"""`/v1/chat/completions`, `/v1/completions`, `/v1/embeddings` as vLLM 0.32 writes them, field for field."""

from __future__ import annotations

import base64
import json
import struct
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from kvgate.sim.dialect import DONE, FINGERPRINT, Dialect
from kvgate.sim.exchange import compact

if TYPE_CHECKING:
    from kvgate.sim.generation import Generation
    from kvgate.sim.jobs import Progress

_NO_EXTRAS: dict[str, Any] = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}


class _OpenAI(Dialect):
    """Frames are put together from strings: a hundred streams at forty steps a second are four thousand."""

    prefix: str
    object_name: str

    def __init__(self, generation: Generation, request_id: str, created_at: int) -> None:
        super().__init__(generation, self.prefix + request_id, created_at)
        head = {
            "id": self.request_id,
            "object": self.object_name + self.chunk_suffix,
            "created": created_at,
            "model": generation.model,
        }
        self._head = f"data: {compact(head)[:-1]},"

    chunk_suffix = ""

    def usage(self, *, details: bool) -> dict[str, Any]:
        prompt, completion = self.generation.prompt_tokens, sum(self.tokens)
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }
        if details:
            usage |= {"prompt_tokens_details": None, "completion_tokens_details": None}
        return usage

    def frame(self, choice: str, index: int, finish: str | None, *, tail: str = "") -> str:
        """One chunk with one choice."""
        fingerprint = ""
        if finish and not self.generation.include_usage:
            fingerprint = f',"system_fingerprint":"{FINGERPRINT}"'
        usage = self._running_usage(index) if self.generation.continuous_usage else ""
        return f'{self._head}"choices":[{choice}]{usage}{tail}{fingerprint}}}\n\n'

    def _running_usage(self, index: int) -> str:
        prompt, completion = self.generation.prompt_tokens, self.tokens[index]
        return (
            f',"usage":{{"prompt_tokens":{prompt},"total_tokens":{prompt + completion},'
            f'"completion_tokens":{completion}{self.running_details}}}'
        )

    running_details = ""

    def closing(self) -> str:
        if not self.generation.include_usage or not self._opened:
            return DONE
        usage = compact(self.usage(details=False))
        return f'{self._head}"choices":[],"usage":{usage},"system_fingerprint":"{FINGERPRINT}"}}\n\n{DONE}'

    def document(self) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "object": self.object_name,
            "created": self.created_at,
            "model": self.generation.model,
            "choices": [self.choice(index) for index in range(len(self.tokens))],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": self.usage(details=True),
            **self.extras(),
        }

    @abstractmethod
    def choice(self, index: int) -> dict[str, Any]: ...

    def extras(self) -> dict[str, Any]:
        return _NO_EXTRAS


class Completion(_OpenAI):
    prefix = "cmpl-"
    object_name = "text_completion"

    def chunk(self, index: int, text: str, finish: str | None) -> str:
        return self.frame(
            f'{{"index":{index},"text":{_quoted(text)},"logprobs":null,"finish_reason":{_quoted(finish)},'
            '"stop_reason":null,"prompt_token_ids":null,"token_ids":null}',
            index,
            finish,
        )

    def choice(self, index: int) -> dict[str, Any]:
        return {
            "index": index,
            "text": self.text_of(index),
            "logprobs": None,
            "finish_reason": self.finish[index],
            "stop_reason": None,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "routed_experts": None,
        }


class Chat(_OpenAI):
    prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_suffix = ".chunk"
    running_details = ',"completion_tokens_details":null'

    def opening(self) -> str:
        return "".join(self._role(index) for index in range(len(self.tokens)))

    def _role(self, index: int) -> str:
        told, self.tokens[index] = self.tokens[index], 0
        frame = self.frame(
            f'{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}',
            index,
            None,
            tail=',"prompt_token_ids":null,"prompt_text":null',
        )
        self.tokens[index] = told
        return frame

    def chunk(self, index: int, text: str, finish: str | None) -> str:
        stop = ',"stop_reason":null' if finish else ""
        return self.frame(
            f'{{"index":{index},"delta":{{"content":{_quoted(text)}}},"logprobs":null,'
            f'"finish_reason":{_quoted(finish)}{stop},"token_ids":null}}',
            index,
            finish,
        )

    def choice(self, index: int) -> dict[str, Any]:
        message = {
            "role": "assistant",
            "content": self.text_of(index),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        return {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": self.finish[index],
            "stop_reason": None,
            "token_ids": None,
            "routed_experts": None,
        }

    def extras(self) -> dict[str, Any]:
        return {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None, **_NO_EXTRAS}


class Embedding(Dialect):
    """One pass over the prompt; the vector has eight numbers that follow from the prompt."""

    def chunk(self, index: int, text: str, finish: str | None) -> str:
        raise NotImplementedError(f"embeddings are not streamed: {index}, {text!r}, {finish}")

    def closing(self) -> str:
        return ""

    def feed(self, progress: Progress) -> str:
        self.tokens[progress.index] += progress.tokens
        self.finish[progress.index] = progress.finish
        return ""

    def document(self) -> dict[str, Any]:
        prompt = self.generation.prompt_tokens
        vectors = [self._vector(choice.mark) for choice in self.generation.choices]
        return {
            "id": f"embd-{self.request_id}",
            "object": "list",
            "created": self.created_at,
            "model": self.generation.model,
            "data": [
                {"index": index, "object": "embedding", "embedding": vector}
                for index, vector in enumerate(vectors)
            ],
            "usage": {
                "prompt_tokens": prompt,
                "total_tokens": prompt,
                "completion_tokens": 0,
                "prompt_tokens_details": None,
            },
        }

    def _vector(self, mark: int) -> list[float] | str:
        numbers = [(mark >> shift) % 256 / 128 - 1 for shift in range(0, 64, 8)]
        if not self.generation.base64:
            return numbers
        return base64.b64encode(struct.pack("<8f", *numbers)).decode()


def _quoted(text: str | None) -> str:
    return json.dumps(text, ensure_ascii=False)
