"""Which counter a pool's `prompt_tokens` setting means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate.errors import ConfigError
from kvgate.tokens.backend import BackendCounter
from kvgate.tokens.learned import LearnedCounter
from kvgate.tokens.local import LocalCounter

if TYPE_CHECKING:
    from kvgate.tokens.base import TokenCounter, Tokenize


def counter_for(spec: str, tokenize: Tokenize) -> TokenCounter:
    """`learned`, `backend` or `local:DIR`. Raises ConfigError for all else and for an unusable folder."""
    kind, _, folder = spec.partition(":")
    if spec == "learned":
        return LearnedCounter(tokenize)
    if spec == "backend":
        return BackendCounter(tokenize)
    if kind == "local" and folder:
        return LocalCounter(folder, tokenize)
    raise ConfigError(f"prompt_tokens is {spec!r}: expected learned, backend or local:DIR")
