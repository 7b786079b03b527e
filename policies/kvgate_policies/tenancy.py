"""How many output tokens may a sequence have, and what is written into the body so that this holds?

An estimate that is not enforced bounds nothing. So the policy's default is charged *and* written where the
client set no limit of its own. The rules, for P prompt tokens and a `max_model_len` of L:

1. Unset means what vLLM makes of it: 16 for completions; missing, hence an error, for messages; the rest of
   the window for chat, responses and generate.
2. The rest of the window says the same as unset, "as long as it takes": so does a limit of at least L - P,
   where P is known exactly, and one of L, whatever P is. These get the policy's default.
3. The policy's cap lowers whatever is above it, its own default included.
4. What is written only ever shortens. A client's value is never raised, and a limit at or above the window
   is not written, for the engine clamps to the window by itself.
5. A value above L or below 1 goes through as it is: vLLM's own 400 shall show.
6. Pooling generates nothing; audio is never rewritten, its prompt being known to the engine alone.
7. Whatever is charged covers what the engine may generate from the body that it gets. Where P is an
   estimate the window counts as L, since the true prompt may be shorter; pricing clamps it for each prompt.
8. A policy without rewriting has no say in how long an answer gets: neither its default nor its cap counts, and
   as long as it takes is charged as the rest of the window.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgate_policies.types import Endpoint, TenantPolicy, TokenCount

COMPLETIONS_MAX_TOKENS_UNSET = 16
"""vLLM's (and OpenAI's) own default for /v1/completions."""


@dataclass(frozen=True, slots=True)
class OutputBudget:
    """What a request may generate."""

    max_tokens: int
    """Output tokens charged for each sequence."""
    rewrite: int | None
    """The value to be written into the body; None leaves the body as it came."""


def output_budget(
    endpoint: Endpoint,
    asked: int | None,
    prompt: TokenCount,
    max_model_len: int,
    policy: TenantPolicy,
    min_tokens: int = 0,
) -> OutputBudget:
    """The tokens to charge and the value to write, by the rules above.

    `asked` is the client's limit, None when unset. With several prompts the longest decides whether it is
    window-sized. A default below the client's `min_tokens` is raised to it: vLLM refuses a limit below
    `min_tokens`, and the client set no limit.
    """
    window = _window(prompt, max_model_len)
    if endpoint is Endpoint.POOLING or _is_refused(endpoint, asked):
        return OutputBudget(1, None)
    if asked is not None and asked > max_model_len:
        return OutputBudget(window, None)
    if endpoint is Endpoint.AUDIO:
        return OutputBudget(max_model_len if asked is None else asked, None)
    stated = COMPLETIONS_MAX_TOKENS_UNSET if asked is None and endpoint is Endpoint.COMPLETIONS else asked
    if not policy.rewrite_max_tokens:
        return OutputBudget(_lowest(stated, window), None)
    open_ended = stated is None or (asked is not None and asked >= _shortest_window(prompt, max_model_len))
    limit = _lowest(
        stated, _default(policy, min_tokens) if open_ended else None, policy.max_tokens_cap, window
    )
    unwritten = _lowest(stated, window)
    return OutputBudget(limit, limit if limit < unwritten else None)


def _is_refused(endpoint: Endpoint, asked: int | None) -> bool:
    """Whether vLLM answers 400 for the limit alone, so that nothing is generated."""
    if asked is None:
        return endpoint is Endpoint.MESSAGES
    return asked < 1


def _default(policy: TenantPolicy, min_tokens: int) -> int | None:
    if policy.max_tokens_default is None:
        return None
    return max(policy.max_tokens_default, min_tokens)


def _window(prompt: TokenCount, max_model_len: int) -> int:
    """Output tokens that fit behind the shortest prompt: no sequence can have more."""
    shortest = min(prompt.tokens, default=0) if prompt.exact else 0
    return max(max_model_len - shortest, 1)


def _shortest_window(prompt: TokenCount, max_model_len: int) -> int:
    """Output tokens that fit behind the longest prompt."""
    longest = max(prompt.tokens, default=0) if prompt.exact else 0
    return max_model_len - longest


def _lowest(*limits: int | None) -> int:
    """The lowest of the limits that are set."""
    return min(limit for limit in limits if limit is not None)
