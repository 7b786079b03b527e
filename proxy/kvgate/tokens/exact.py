"""Counts that need no guess: token ids in the request, and the engine's own `POST /tokenize`."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kvgate.tokens.base import TokenizeFailed
from kvgate_policies.types import InferenceRequest, PromptSize, TokenCount

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvgate.tokens.base import Tokenize

logger = logging.getLogger(__name__)

ASKED_AT_ONCE_MAX = 8
"""Bodies of one request at the engine together: it tokenizes in one process, more would only queue there."""
ASKED_MAX = 128
"""Prompts of one request that are counted by the engine; a longer list is estimated, for each costs it
milliseconds that its own requests wait for."""
ASKED_BYTES_MAX = 8 * 1024 * 1024
"""Text of one request that a tokenizer is given: more than a window of a million tokens holds. What is larger is
estimated, and refused by the engine, whose own check takes no tokenizer."""


def given(request: InferenceRequest) -> TokenCount | None:
    """The count of a request whose prompts all came as token ids; None where one is text."""
    tokens = [prompt.tokens for prompt in request.prompts if prompt.tokens is not None]
    if len(tokens) < len(request.prompts):
        return None
    return clipped(request, tokens, exact=True)


def clipped(request: InferenceRequest, tokens: Iterable[int], *, exact: bool) -> TokenCount:
    """Counts as they are after the client's `truncate_prompt_tokens`.

    A negative one is vLLM's word for "to the window" and clips nothing here.
    """
    most = request.prompt_tokens_max
    if most is not None and most > 0:
        tokens = (min(count, most) for count in tokens)
    return TokenCount(tuple(tokens), exact)


def countable(request: InferenceRequest) -> bool:
    """Whether a tokenizer can count all prompts: a body for each, not too many or too large, and no media.

    Of an image a tokenizer only sees the placeholder.
    """
    bodies, prompts = len(request.tokenize), len(request.prompts)
    if bodies != prompts or not 0 < prompts <= ASKED_MAX or any(p.media_tokens for p in request.prompts):
        return False
    return sum(prompt.utf8_bytes for prompt in request.prompts) <= ASKED_BYTES_MAX


async def ask_engine(tokenize: Tokenize | None, request: InferenceRequest) -> tuple[int, ...] | None:
    """Tokens of each prompt before truncation, by the engine; None if it cannot be asked or does not say."""
    if tokenize is None or not countable(request):
        return None
    counted: list[int] = []
    for start in range(0, len(request.prompts), ASKED_AT_ONCE_MAX):
        end = start + ASKED_AT_ONCE_MAX
        part = zip(request.prompts[start:end], request.tokenize[start:end], strict=True)
        answers = await asyncio.gather(*(_ask_one(tokenize, prompt, body) for prompt, body in part))
        tokens = [answer for answer in answers if answer is not None]
        if len(tokens) < len(answers):
            return None
        counted += tokens
    return tuple(counted)


async def _ask_one(tokenize: Tokenize, prompt: PromptSize, body: Mapping[str, object]) -> int | None:
    if prompt.tokens is not None:
        return prompt.tokens
    try:
        return await tokenize(body)
    except TokenizeFailed:
        return None
    except Exception:
        # A count is a help, not a need: an estimate serves the request, and the log has the fault.
        logger.exception("tokenize failed in an unforeseen way; the prompt is estimated")
        return None
