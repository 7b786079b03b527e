"""What the answers of all endpoints have in common: counting what was told, and the text that goes with it.

A dialect turns progress into frames of an event stream, and keeps enough to build the JSON answer instead. It
does not wait and does not send.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from kvgate.sim import output, tokenizer

if TYPE_CHECKING:
    from kvgate.sim.errors import RequestRefused
    from kvgate.sim.generation import Generation
    from kvgate.sim.jobs import Progress

FINGERPRINT = "vllm-0.32.0-sim"
DONE = "data: [DONE]\n\n"
ABORT = "abort"


class Dialect(ABC):
    def __init__(self, generation: Generation, request_id: str, created_at: int) -> None:
        self.generation = generation
        self.request_id = request_id
        self.created_at = created_at
        self.tokens = [0] * len(generation.choices)
        self.finish: list[str | None] = [None] * len(generation.choices)
        self._texts: list[list[str]] = [[] for _ in generation.choices]
        self._opened = False

    # What the caller does with it

    @property
    def unfinished(self) -> bool:
        return None in self.finish

    def preamble(self) -> str:
        """Frames that go out before any token."""
        return ""

    def feed(self, progress: Progress) -> str:
        """Frames that tell of this progress."""
        index = progress.index
        text = self._text(progress)
        self.tokens[index] += progress.tokens
        self.finish[index] = progress.finish
        self._texts[index].append(text)
        return self._open() + self.chunk(index, text, progress.finish)

    def abort(self) -> str:
        """End all unfinished choices with finish_reason `abort`; frames for those that had begun."""
        frames: list[str] = []
        for index, reason in enumerate(self.finish):
            if reason is None:
                self.finish[index] = ABORT
                if self._opened:
                    frames.append(self.chunk(index, "", ABORT))
        return "".join(frames)

    def _open(self) -> str:
        if self._opened:
            return ""
        self._opened = True
        return self.opening()

    def _text(self, progress: Progress) -> str:
        choice = self.generation.choices[progress.index]
        start = self.tokens[progress.index]
        stop = start + progress.tokens - (progress.finish == "stop")  # the end-of-sequence token has no text
        text = output.words(choice.mark, start, stop)
        if self.generation.echo and start == 0:
            asked_nothing = self.generation.max_tokens == 0
            return tokenizer.decode(choice.prompt[1:]) + ("" if asked_nothing else text)
        return text

    def text_of(self, index: int) -> str:
        return "".join(self._texts[index])

    # What each endpoint adds

    def opening(self) -> str:
        """Frames that come with the first token."""
        return ""

    @abstractmethod
    def chunk(self, index: int, text: str, finish: str | None) -> str: ...

    @abstractmethod
    def closing(self) -> str:
        """The last frames of a stream that ended by itself or by an abort."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """The JSON answer."""

    def error_frames(self, error: RequestRefused) -> str:
        """The end of a stream that breaks down after its status line was sent."""
        return f"data: {json.dumps(error.body)}\n\n{DONE}"


def event(name: str, payload: str) -> str:
    """A named server-sent event."""
    return f"event: {name}\ndata: {payload}\n\n"
