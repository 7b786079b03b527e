"""How large a prompt is, before anyone tokenized it: bytes of text, dense bytes, messages, media.

Everything that can reach a chat template or a tokenizer counts, keys and punctuation of nested objects
included, because templates print tools and arguments as JSON. Media are looked for only where they can be, in
content parts (a tool whose schema has a property `image_url` is text). There base64 never counts as text:
media have a flat charge, corrected once the engine reports the real number.
"""

from __future__ import annotations

from typing import Any

from kvgate_policies.types import PromptSize

MEDIA_TOKENS = 2048
"""Flat charge for one image, sound or film: an image of 1.6 megapixels at 28 × 28 pixels a token."""

KEY_BYTES = 4
"""Quotes, colon and comma around a key or a nested string, in an object printed as JSON."""
SCALAR_BYTES = 8
"""A number, true, false or null in a nested object."""
LONG = 64
"""Entries from which on a list's numbers are counted in one go: a body may have millions of them."""
CONTENT_DEPTH_MAX = 8
"""Content within content, as in a tool's result; no API has more than three. Deeper ones count as text."""

_MEDIA_TYPES = frozenset({"image", "input_image", "document", "input_file", "file", "audio", "video"})
_MEDIA_KEYS = frozenset(
    {
        "image_url",
        "audio_url",
        "video_url",
        "input_audio",
        "image_pil",
        "image_embeds",
        "audio_embeds",
        "prompt_embeds",
        "file_data",
    }
)
_CAPTION_KEYS = ("text", "title", "context")
"""Read in a media part beside the media: captions, and titles of Anthropic documents."""
_CONTENT_KEYS = frozenset({"content", "output"})
"""Where parts may stand: messages, tool results, outputs of function calls."""
_UNREAD_KEYS = frozenset({"role", "type", "signature", "encrypted_content", "cache_control"})
"""Never printed by a template, or covered by the charge for a message."""
_TEXT_SOURCES = ("text", "content")
"""Anthropic documents whose source is text after all."""

_NUMBERS = frozenset({int, float})

_ALL_BYTES = bytes(range(256))
_NOT_TWO_BYTE_LEAD = bytes(b for b in _ALL_BYTES if not 0xD5 <= b <= 0xDF)
_NOT_THREE_BYTE_LEAD = bytes(b for b in _ALL_BYTES if not 0xE0 <= b <= 0xEF)
_NOT_FOUR_BYTE_LEAD = bytes(b for b in _ALL_BYTES if not 0xF0 <= b <= 0xF7)


def dense_bytes(utf8: bytes) -> int:
    """Bytes of characters from U+0540 on: Hebrew, Arabic, Indic scripts, Thai, CJK, kana, hangul, emoji.

    Tokenizers spend a token on about every one of them, while Latin, Greek and Cyrillic text has several
    letters to a token. Told by the first byte of a UTF-8 sequence (RFC 3629), which also gives its length.
    """
    return (
        2 * len(utf8.translate(None, _NOT_TWO_BYTE_LEAD))
        + 3 * len(utf8.translate(None, _NOT_THREE_BYTE_LEAD))
        + 4 * len(utf8.translate(None, _NOT_FOUR_BYTE_LEAD))
    )


class Scale:
    """Adds up one prompt."""

    __slots__ = ("_dense_bytes", "_media_tokens", "_media_tokens_each", "_messages", "_utf8_bytes")

    def __init__(self, media_tokens_each: int) -> None:
        self._media_tokens_each = media_tokens_each
        self._utf8_bytes = 0
        self._dense_bytes = 0
        self._messages = 0
        self._media_tokens = 0

    def size(self) -> PromptSize:
        return PromptSize(
            utf8_bytes=self._utf8_bytes,
            dense_bytes=self._dense_bytes,
            messages=self._messages,
            media_tokens=self._media_tokens,
        )

    def add(self, size: PromptSize) -> None:
        """Something that stands in several prompts, measured once."""
        self._utf8_bytes += size.utf8_bytes
        self._dense_bytes += size.dense_bytes
        self._messages += size.messages
        self._media_tokens += size.media_tokens

    def text(self, text: str) -> None:
        if text.isascii():
            self._utf8_bytes += len(text)
            return
        utf8 = text.encode()
        self._utf8_bytes += len(utf8)
        self._dense_bytes += dense_bytes(utf8)

    def media(self, count: int = 1) -> None:
        self._media_tokens += count * self._media_tokens_each

    def tokens(self, tokens: int) -> None:
        """A charge in tokens for what can't be measured."""
        self._media_tokens += tokens

    def message_count(self, count: int) -> None:
        self._messages += count

    def conversation(self, messages: Any) -> None:
        """A list of messages or items: one charge for each, and all that is in them."""
        if not isinstance(messages, list):
            self.value(messages)
            return
        self._messages += len(messages)
        for message in self._but_numbers(messages):
            self._part(message, 0)

    def content(self, content: Any, depth: int = 0) -> None:
        """The content of a message: a string, or parts of text and media."""
        if isinstance(content, str):
            self.text(content)
        elif isinstance(content, list) and depth < CONTENT_DEPTH_MAX:
            for part in self._but_numbers(content):
                self._part(part, depth)
        elif isinstance(content, dict) and depth < CONTENT_DEPTH_MAX:
            self._part(content, depth)
        else:
            self.value(content)

    def _part(self, part: Any, depth: int) -> None:
        """A message, an item, or a part of a content: they nest, and their keys tell what they hold."""
        if not isinstance(part, dict):
            self.content(part, depth + 1)
        elif _is_media(part):
            self.media()
            for key in _CAPTION_KEYS:
                self.value(part.get(key))
            for key in _CONTENT_KEYS:
                self.content(part.get(key), depth + 1)
        else:
            for key, value in part.items():
                if key in _CONTENT_KEYS or key == "source":
                    self.content(value, depth + 1)
                elif key not in _UNREAD_KEYS:
                    self._field(value)

    def _field(self, value: Any) -> None:
        if isinstance(value, str) and value.startswith("data:") and ";base64," in value[:200]:
            self.media()
        elif isinstance(value, str):
            self.text(value)
        else:
            self.value(value)

    def value(self, value: Any) -> None:
        """Anything that is printed as JSON, as deep as it comes: no recursion, so depth is no danger."""
        stack = [] if value is None else [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                self._utf8_bytes += KEY_BYTES
                self.text(item)
            elif isinstance(item, dict):
                self._utf8_bytes += KEY_BYTES * (1 + len(item))
                for key in item:
                    self.text(key)
                stack.extend(item.values())
            elif isinstance(item, list):
                self._utf8_bytes += KEY_BYTES
                stack.extend(self._but_numbers(item))
            elif item is not None:
                self._utf8_bytes += SCALAR_BYTES

    def _but_numbers(self, items: list[Any]) -> list[Any]:
        """The rest of a long list; what its numbers take as text is added up here."""
        if len(items) < LONG:
            return items
        rest = [item for item in items if type(item) not in _NUMBERS]
        self._utf8_bytes += SCALAR_BYTES * (len(items) - len(rest))
        return rest


def _is_media(part: dict[str, Any]) -> bool:
    """A whole message never is: everything in it counts, whatever keys it has."""
    if "role" in part:
        return False
    kind = part.get("type")
    if isinstance(kind, str) and kind in _MEDIA_TYPES:
        return not _is_text_source(part.get("source"))
    return not _MEDIA_KEYS.isdisjoint(part)


def _is_text_source(source: Any) -> bool:
    return isinstance(source, dict) and source.get("type") in _TEXT_SOURCES
