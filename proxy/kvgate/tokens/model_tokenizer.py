"""Count a body of `POST /tokenize` with the model's own tokenizer: the same body, the same number."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

from kvgate.tokens.base import packed
from kvgate.tokens.model_folder import load_template, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CACHE_MAX = 4096
"""Counts remembered, about 150 bytes each: retries and prompts that come again."""


class NotCounted(Exception):
    """The body is of a form that is not known here."""


class ModelTokenizer:
    """Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError as `model_folder` does."""
        self._tokenizer = load_tokenizer(folder)
        self._template = load_template(folder)
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self._lock = Lock()

    def count(self, body: Mapping[str, object]) -> int:
        """Tokens of a prompt or a chat.

        Raises NotCounted, `chat_template.NotRendered`, or what the tokenizer raises for text it cannot take
        (lone surrogates).
        """
        prompt = body.get("prompt")
        if isinstance(prompt, list):
            return len(prompt)
        text, specials = self._text(body)
        return self._count_text(text, specials=specials)

    def ids(self, body: Mapping[str, object]) -> bytes:
        """The token ids of a text or a chat, four bytes each. Raises as `count`."""
        text, specials = self._text(body)
        return packed(self._encode(text, specials=specials))

    def _text(self, body: Mapping[str, object]) -> tuple[str, bool]:
        """The text, and whether the tokenizer adds its special tokens."""
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            return prompt, bool(body.get("add_special_tokens", True))
        if self._template is None:
            raise NotCounted("the model's folder has no chat template")
        # A template writes the special tokens itself, so by default none are added.
        return self._template.render(body), bool(body.get("add_special_tokens", False))

    def _count_text(self, text: str, *, specials: bool) -> int:
        key = hashlib.blake2b(text.encode(), digest_size=16, person=b"specials" if specials else b"").digest()
        with self._lock:
            known = self._counts.get(key)
            if known is not None:
                self._counts.move_to_end(key)
                return known
        tokens = len(self._encode(text, specials=specials))
        with self._lock:
            self._counts[key] = tokens
            if len(self._counts) > CACHE_MAX:
                self._counts.popitem(last=False)
        return tokens

    def _encode(self, text: str, *, specials: bool) -> list[int]:
        # Of the ways to encode, only this one lets other threads run meanwhile.
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=specials)
        return encoding.ids
