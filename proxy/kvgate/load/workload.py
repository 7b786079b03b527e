"""What is asked: sessions with a known prompt and a known output length, made from a seed.

The same seed gives the same requests, so two ways to the same engines can be compared. Output lengths are
exact because `ignore_eos` goes with `max_tokens`, unless they are not to be told. Prompts are token ids where the count
has to be exact (no tokenizer stands between); as text they have that many short words, and the engine's `usage` says
what it counted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_FIRST_ID, _LAST_ID = 16, 999
"""Token ids below 16 are special tokens in many vocabularies; every vocabulary in use has a thousand."""


SIM_LENGTH = "x-sim-output-tokens"
"""By it `kvgate sim-engine` is told how many tokens its answer has."""


class PromptKind(StrEnum):
    TOKEN_IDS = "token_ids"  # noqa: S105  a kind of prompt
    """`/v1/completions` with a list of ids: the count is exact."""
    TEXT = "text"
    """`/v1/completions` with text."""
    CHAT = "chat"
    """`/v1/chat/completions` with one user message; the template's tokens come on top."""


@dataclass(frozen=True, slots=True)
class Session:
    """One request."""

    prompt: tuple[int, ...] | str
    prompt_tokens: int
    """Exact for token ids, about right for text."""
    output_tokens: int
    chat: bool = False
    tenant: str = ""
    """Whose it is, for the report; empty where there is only one."""
    key: str | None = field(default=None, repr=False)
    """The API key that it is sent with."""

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions in the order in which they are sent, all to one model."""

    model: str
    sessions: Sequence[Session]
    """Made at once, or each when it is asked for."""
    tells_lengths: bool = True
    """False: requests have no limit, as those of most clients. A simulated engine is told the length by a header that
    nobody else reads; any other ends its answers as it likes.
    """

    def body(self, index: int) -> bytes:
        """The JSON of session `index`; see `body_of`."""
        return self.body_of(self.sessions[index])

    def body_of(self, session: Session) -> bytes:
        """The JSON of a session: streaming, temperature 0, usage on every chunk to count tokens by."""
        asked: dict[str, Any] = {
            "model": self.model,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if self.tells_lengths:
            asked |= {"max_tokens": session.output_tokens, "ignore_eos": True}
        if session.chat:
            asked["messages"] = [{"role": "user", "content": session.prompt}]
        else:
            asked["prompt"] = session.prompt
        return msgspec.json.encode(asked)

    def headers_of(self, session: Session) -> dict[str, str]:
        """Those that a session is sent with."""
        key = {} if session.key is None else {"authorization": f"Bearer {session.key}"}
        length = {} if self.tells_lengths else {SIM_LENGTH: str(session.output_tokens)}
        return {"content-type": "application/json", **key, **length}


def uniform(
    model: str,
    *,
    count: int,
    prompt_tokens: int,
    output_tokens: int,
    seed: int,
    kind: PromptKind = PromptKind.TOKEN_IDS,
) -> Workload:
    """`count` sessions of one size, each with a prompt of its own."""
    return mixed(model, [(prompt_tokens, output_tokens)] * count, seed=seed, kind=kind)


def mixed(
    model: str,
    sizes: Iterable[tuple[int, int]],
    *,
    seed: int,
    kind: PromptKind = PromptKind.TOKEN_IDS,
) -> Workload:
    """One session for each (prompt tokens, output tokens). Raises ValueError for a size below one."""
    source = random.Random(seed)  # noqa: S311  the point is that it can be repeated
    return Workload(model, tuple(make_session(source, prompt, output, kind) for prompt, output in sizes))


def make_session(source: random.Random, prompt_tokens: int, output_tokens: int, kind: PromptKind) -> Session:
    """A session with a prompt from `source`. Raises ValueError for a size below one."""
    if prompt_tokens < 1 or output_tokens < 1:
        msg = f"a session needs at least one token each way, not {prompt_tokens} in and {output_tokens} out"
        raise ValueError(msg)
    prompt = _ids(source, prompt_tokens) if kind is PromptKind.TOKEN_IDS else _words(source, prompt_tokens)
    return Session(prompt, prompt_tokens, output_tokens, chat=kind is PromptKind.CHAT)


def _ids(source: random.Random, count: int) -> tuple[int, ...]:
    return tuple(source.randint(_FIRST_ID, _LAST_ID) for _ in range(count))


def _words(source: random.Random, count: int) -> str:
    """Three letters and a space are four bytes: one token by the usual rule of thumb."""
    return " ".join("".join(source.choices("abcdefghijklmnopqrstuvwxyz", k=3)) for _ in range(count))
