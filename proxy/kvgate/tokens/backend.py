"""The counter that always asks the engine's `POST /tokenize`: exact, for milliseconds of the engine's CPU.

It is not held up by a full engine queue. Where it cannot count (media, no engine up) the learned estimate
steps in, which every exact count has taught.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.tokens.learned import LearnedCounter

if TYPE_CHECKING:
    from kvgate.tokens.base import Tokenize
    from kvgate_policies.types import InferenceRequest, TokenCount


class BackendCounter:
    def __init__(self, tokenize: Tokenize) -> None:
        self._learned = LearnedCounter(tokenize)

    async def count(self, request: InferenceRequest) -> TokenCount:
        return await self._learned.count_exactly(request) or self._learned.estimate(request)

    async def count_exactly(self, request: InferenceRequest) -> TokenCount | None:
        return await self._learned.count_exactly(request)

    def learn(self, request: InferenceRequest, prompt_tokens: int) -> None:
        self._learned.learn(request, prompt_tokens)
