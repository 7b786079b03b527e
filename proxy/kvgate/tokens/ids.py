"""A counter that says which tokens a prompt has, not only how many: for those who compare prompts.

For prompts whose tokens are known for certain: one text or chat, tokenized by the engine's `POST /tokenize` or by the
model's own tokenizer, as the engine itself will do it. All others are counted as without it. It takes the place of the
count, so a prompt is tokenized once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kvgate.tokens.exact import countable
from kvgate_policies.sharing import TOKEN_BYTES
from kvgate_policies.types import Endpoint, TokenCount

if TYPE_CHECKING:
    from kvgate.tokens.base import TokenCounter, TokenIds
    from kvgate_policies.types import InferenceRequest

logger = logging.getLogger(__name__)

READ_ALIKE = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
"""Endpoints whose prompts `POST /tokenize` reads by the same code; of the others it is known for the count."""


class IdsCounter:
    def __init__(self, counter: TokenCounter, token_ids: TokenIds) -> None:
        """`counter` counts what has no ids, and learns."""
        self._counter = counter
        self._token_ids = token_ids

    async def count(self, request: InferenceRequest) -> TokenCount:
        return await self._with_ids(request) or await self._counter.count(request)

    async def count_exactly(self, request: InferenceRequest) -> TokenCount | None:
        return await self._with_ids(request) or await self._counter.count_exactly(request)

    def learn(self, request: InferenceRequest, prompt_tokens: int) -> None:
        self._counter.learn(request, prompt_tokens)

    async def _with_ids(self, request: InferenceRequest) -> TokenCount | None:
        if not _plain(request):
            return None
        try:
            ids = await self._token_ids(request.tokenize[0])
        except Exception as error:  # noqa: BLE001 - a help, not a need: the prompt is counted in another way
            logger.debug("the prompt's tokens are not known: %s", error)
            return None
        tokens = len(ids) // TOKEN_BYTES
        self._counter.learn(request, tokens)
        return TokenCount((tokens,), exact=True, ids=ids)


def _plain(request: InferenceRequest) -> bool:
    """One text, whole."""
    if (
        request.endpoint not in READ_ALIKE
        or len(request.prompts) != 1
        or request.prompt_tokens_max is not None
    ):
        return False
    return request.prompts[0].tokens is None and countable(request)
