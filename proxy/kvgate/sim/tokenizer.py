"""A tokenizer without a vocabulary: four bytes of UTF-8 make a token, and a token says which bytes it was.

It promises what tests of a proxy need: the same text gives the same tokens everywhere, texts with a common
beginning share their first tokens (so the prefix cache works), tokens turn back into the text, and nothing is
loaded. English comes out at 4 bytes a token, about what real tokenizers make of it; CJK at 1.3 characters.

Token ids: 0–7 are special; then all 1-byte tokens, all 2-byte ones, and so on.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PAD, BOS, END, USER, ASSISTANT, SYSTEM, TOOL, OTHER = range(8)
SPECIALS = (
    "<|pad|>",
    "<|bos|>",
    "<|end|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|tool|>",
    "<|other|>",
)
BYTES_PER_TOKEN = 4
_OFFSETS = (8, 8 + 256, 8 + 256 + 256**2, 8 + 256 + 256**2 + 256**3)
VOCABULARY = _OFFSETS[-1] + 256**4

_ROLES = {"user": USER, "assistant": ASSISTANT, "system": SYSTEM, "developer": SYSTEM, "tool": TOOL}


def encode(text: str) -> tuple[int, ...]:
    """Tokens of a text, without specials. Lone surrogates, which JSON can carry, count as `?`."""
    data = text.encode("utf-8", "replace")
    whole = len(data) // BYTES_PER_TOKEN
    tokens = [_OFFSETS[3] + word for word in struct.unpack(f">{whole}I", data[: whole * BYTES_PER_TOKEN])]
    rest = data[whole * BYTES_PER_TOKEN :]
    if rest:
        tokens.append(_OFFSETS[len(rest) - 1] + int.from_bytes(rest))
    return tuple(tokens)


def token_bytes(token: int) -> bytes:
    """What a token stands for. Raises `ValueError` for an id outside the vocabulary."""
    if not 0 <= token < VOCABULARY:
        raise ValueError(f"token id {token} is outside the vocabulary of {VOCABULARY}")
    if token < len(SPECIALS):
        return SPECIALS[token].encode()
    length = max(index for index, offset in enumerate(_OFFSETS) if token >= offset) + 1
    return (token - _OFFSETS[length - 1]).to_bytes(length)


def decode(tokens: Iterable[int]) -> str:
    """The text of tokens; incomplete UTF-8 becomes U+FFFD. Raises `ValueError` as `token_bytes`."""
    return b"".join(map(token_bytes, tokens)).decode("utf-8", "replace")


def encode_prompt(text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
    return (BOS, *encode(text)) if add_special_tokens else encode(text)


def apply_chat_template(
    messages: Sequence[tuple[str, str]], *, media: int = 0, add_generation_prompt: bool = True
) -> tuple[int, ...]:
    """Tokens of a chat: BOS, for each (role, text) its role, its text and END, then the assistant's turn.

    `media` tokens stand for images and the like; they follow BOS.
    """
    tokens = [BOS, *[PAD] * media]
    for role, text in messages:
        tokens += (_ROLES.get(role, OTHER), *encode(text), END)
    if add_generation_prompt:
        tokens.append(ASSISTANT)
    return tuple(tokens)
