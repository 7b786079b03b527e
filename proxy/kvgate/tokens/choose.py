"""Which counter a pool's `prompt_tokens` setting means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.errors import ConfigError
from kvgate.tokens.backend import BackendCounter
from kvgate.tokens.ids import IdsCounter
from kvgate.tokens.learned import LearnedCounter
from kvgate.tokens.local import LocalCounter

if TYPE_CHECKING:
    from kvgate.tokens.base import TokenCounter, TokenIds, Tokenize


def counter_for(spec: str, tokenize: Tokenize, token_ids: TokenIds | None = None) -> TokenCounter:
    """`learned`, `backend` or `local:DIR`. Raises ConfigError for all else and for an unusable folder.

    With `token_ids`, which asks an engine, counts have the ids where they are known: to all but `learned`.
    """
    kind, _, folder = spec.partition(":")
    if spec == "learned":
        return LearnedCounter(tokenize)
    if spec == "backend":
        backend = BackendCounter(tokenize)
        return backend if token_ids is None else IdsCounter(backend, token_ids)
    if kind == "local" and folder:
        local = LocalCounter(folder, tokenize)
        return local if token_ids is None else IdsCounter(local, local.token_ids)
    raise ConfigError(f"prompt_tokens is {spec!r}: expected learned, backend or local:DIR")
