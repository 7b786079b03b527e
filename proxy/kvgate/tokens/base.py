"""Counting prompt tokens: three counters behind one interface, chosen per pool.

All give the same thing, tokens and whether they are exact; pricing doesn't care who counted.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from kvgate_policies.types import InferenceRequest, TokenCount

Tokenize = Callable[[Mapping[str, object]], Awaitable[int]]
"""Ask an engine's `POST /tokenize` for the number of tokens. Raises `TokenizeFailed`."""

TokenIds = Callable[[Mapping[str, object]], Awaitable[bytes]]
"""Token ids of the prompt in a body of `POST /tokenize`, four bytes each. May raise whatever the tokenizer raises."""


class TokenizeFailed(Exception):
    """No engine could count: none is up, it took too long, or it refused the body."""


def packed(ids: Iterable[int]) -> bytes:
    """Token ids, four bytes each. Raises OverflowError for a number that is none."""
    return array("I", ids).tobytes()


class TokenCounter(Protocol):
    async def count(self, request: InferenceRequest) -> TokenCount:
        """The prompt's tokens, with media and template. Never raises: falls back to a careful estimate."""
        ...

    async def count_exactly(self, request: InferenceRequest) -> TokenCount | None:
        """The engine's own count, asked for where an estimate would cross a bound; None if it can't be had."""
        ...

    def learn(self, request: InferenceRequest, prompt_tokens: int) -> None:
        """The truth about a request that was counted here (`usage.prompt_tokens`, all prompts together)."""
        ...
