"""The default counter: no tokenizer at hand, tokens per byte learned while requests pass (`ratios`).

The first prompts of a model and script, and one in a hundred later, are counted by the engine, hence exact;
the rest are estimated, rather too high than too low. The truth about finished requests teaches too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.tokens.exact import ask_engine, clipped, countable, given
from kvgate.tokens.ratios import Ratios

if TYPE_CHECKING:
    from kvgate.tokens.base import Tokenize
    from kvgate_policies.types import InferenceRequest, TokenCount


class LearnedCounter:
    def __init__(self, tokenize: Tokenize | None) -> None:
        self._tokenize = tokenize
        self._ratios = Ratios()

    async def count(self, request: InferenceRequest) -> TokenCount:
        """Exact for token ids and for those prompts whose turn it is; else the estimate."""
        known = given(request)
        if known is not None:
            return known
        if self._is_due(request):
            exact = await self._ask(request)
            if exact is not None:
                return exact
        return self.estimate(request)

    async def count_exactly(self, request: InferenceRequest) -> TokenCount | None:
        return given(request) or await self._ask(request)

    def estimate(self, request: InferenceRequest) -> TokenCount:
        """What the bytes suggest, without asking anyone."""
        ratios = self._ratios.of(request.model)
        tokens = [p.tokens if p.tokens is not None else ratios.estimate(p) for p in request.prompts]
        return clipped(request, tokens, exact=False)

    def learn(self, request: InferenceRequest, prompt_tokens: int) -> None:
        """Teach by the truth; not by media and truncated prompts, whose tokens are not their text's."""
        texts = all(prompt.tokens is None and not prompt.media_tokens for prompt in request.prompts)
        if texts and request.prompt_tokens_max is None:
            self._ratios.of(request.model).learn(request.prompts, prompt_tokens)

    def teach(self, request: InferenceRequest, tokens: tuple[int, ...]) -> None:
        """Teach by counts that were made before truncation."""
        self._ratios.of(request.model).learn(request.prompts, sum(tokens))

    def _is_due(self, request: InferenceRequest) -> bool:
        if self._tokenize is None or not countable(request):
            return False
        ratios = self._ratios.of(request.model)
        # All are noticed, so no `any` over a generator.
        return any([ratios.notice(prompt) for prompt in request.prompts])  # noqa: C419

    async def _ask(self, request: InferenceRequest) -> TokenCount | None:
        tokens = await ask_engine(self._tokenize, request)
        if tokens is None:
            return None
        self.teach(request, tokens)
        return clipped(request, tokens, exact=True)
