"""The counter with the model's own tokenizer and chat template, from a local folder.

Exact for text, without a question to the engine. A long prompt is counted in a thread, by
`encode_batch_fast`, which lets go of the interpreter lock where `encode` keeps it: tokenizing a megabyte
would otherwise hold up every stream for a second. What the folder cannot count (media, a template that
refuses) is left to the learned counter.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from kvgate.errors import ConfigError
from kvgate.tokens.exact import clipped, countable, given
from kvgate.tokens.learned import LearnedCounter
from kvgate.tokens.model_tokenizer import ModelTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvgate.tokens.base import Tokenize
    from kvgate_policies.types import InferenceRequest, TokenCount

logger = logging.getLogger(__name__)

INLINE_BYTES_MAX = 4096
"""Requests with less text are counted on the loop: about a millisecond, and no wait for a thread."""
THREADS_MAX = 2
"""Prompts tokenized at the same time; more would take the cores of the streams. The others wait in order, no
longer than their requests do."""


class LocalCounter:
    def __init__(self, folder: str | Path, tokenize: Tokenize | None = None) -> None:
        """Load the folder. `tokenize` serves the learned counter behind it.

        Raises ConfigError if the extra is not installed or the folder is not a tokenizer's.
        """
        path = Path(folder)
        if not path.is_dir():
            raise ConfigError(f"prompt_tokens local:{folder}: {folder} is not a folder")
        self._tokenizer = ModelTokenizer(path)
        self._threads = anyio.CapacityLimiter(THREADS_MAX)
        self._learned = LearnedCounter(tokenize)

    async def count(self, request: InferenceRequest) -> TokenCount:
        exact = given(request) or await self._count_here(request)
        return exact or await self._learned.count(request)

    async def count_exactly(self, request: InferenceRequest) -> TokenCount | None:
        exact = given(request) or await self._count_here(request)
        return exact or await self._learned.count_exactly(request)

    def learn(self, request: InferenceRequest, prompt_tokens: int) -> None:
        self._learned.learn(request, prompt_tokens)

    async def token_ids(self, body: Mapping[str, object]) -> bytes:
        """For `IdsCounter`: of one body of `POST /tokenize`. Raises as `ModelTokenizer.ids`."""
        return await anyio.to_thread.run_sync(
            self._tokenizer.ids, body, abandon_on_cancel=True, limiter=self._threads
        )

    async def _count_here(self, request: InferenceRequest) -> TokenCount | None:
        if not countable(request):
            return None
        try:
            tokens = await self._count_where_it_hurts_least(request)
        except Exception as error:  # noqa: BLE001 - template and tokenizer run on whatever a client sent
            logger.debug("the prompt is estimated: %s", error)
            return None
        return clipped(request, tokens, exact=True)

    async def _count_where_it_hurts_least(self, request: InferenceRequest) -> list[int]:
        if sum(prompt.utf8_bytes for prompt in request.prompts) <= INLINE_BYTES_MAX:
            return self._count_all(request)
        return await anyio.to_thread.run_sync(
            self._count_all, request, abandon_on_cancel=True, limiter=self._threads
        )

    def _count_all(self, request: InferenceRequest) -> list[int]:
        pairs = zip(request.prompts, request.tokenize, strict=True)
        return [self._tokenizer.count(body) if p.tokens is None else p.tokens for p, body in pairs]
