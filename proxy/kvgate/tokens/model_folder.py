"""Read the tokenizer and chat template of a model from a local folder in Hugging Face's layout.

Needed is `tokenizer.json`. The template is in `chat_template.jinja` or, in older folders, in
`tokenizer_config.json`, which also names the special tokens that templates refer to. A folder without
template counts prompts, and leaves chats to the estimate. The tokenizer library is an extra, hence imported
here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kvgate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tokenizers import Tokenizer

    from kvgate.tokens.chat_template import ChatTemplate

INSTALL = "install it with: pip install 'kvgate[tokenizers]'"


def load_tokenizer(folder: Path) -> Tokenizer:
    """Raises ConfigError if the library or the file is missing, or the file is not a tokenizer."""
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError(f"prompt_tokens local:{folder} needs the tokenizers library; {INSTALL}") from error
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"prompt_tokens local:{folder}: {path} is missing; give a folder that has it")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise ConfigError(f"prompt_tokens local:{folder}: {path} is no tokenizer: {error}") from error
    # Some files carry the settings of the training run; a count is of the whole text and of nothing else.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def load_template(folder: Path) -> ChatTemplate | None:
    """None where the folder has no template. Raises ConfigError for one that cannot be used."""
    config = _read_object(folder / "tokenizer_config.json")
    file = folder / "chat_template.jinja"
    source = file.read_text("utf-8") if file.is_file() else config.get("chat_template")
    if source is None:
        return None
    try:
        from kvgate.tokens.chat_template import ChatTemplate  # noqa: PLC0415 - jinja2 is an extra
    except ImportError as error:
        raise ConfigError(f"prompt_tokens local:{folder} needs the jinja2 library; {INSTALL}") from error
    try:
        return ChatTemplate(_sources(source), _special_tokens(folder, config))
    except (
        Exception
    ) as error:  # a template is a program: whatever is wrong with it shows while it is compiled
        raise ConfigError(f"prompt_tokens local:{folder}: the chat template is unusable: {error}") from error


def _special_tokens(folder: Path, config: Mapping[str, object]) -> dict[str, str]:
    """`bos_token` and the like; the tokenizer's own configuration wins over the older map of them."""
    entries = _read_object(folder / "special_tokens_map.json") | dict(config)
    named = {key: _token_text(value) for key, value in entries.items() if key.endswith("_token")}
    return {key: text for key, text in named.items() if text is not None}


def _token_text(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _read_object(path: Path) -> dict[str, object]:
    """A JSON object; {} where the file is missing. Raises ConfigError for a file that is something else."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return {str(key): entry for key, entry in value.items()}


def _sources(value: object) -> dict[str, str]:
    """Templates by name, from `chat_template` in the configuration: one text, or a list of named ones.

    Raises TypeError for anything else.
    """
    if isinstance(value, str):
        return {"default": value}
    if not isinstance(value, list):
        raise TypeError("chat_template is neither a text nor a list of named templates")
    return dict(_named(entry) for entry in _entries(value))


def _entries(value: Sequence[object]) -> list[dict[str, object]]:
    entries = [{str(k): v for k, v in entry.items()} for entry in value if isinstance(entry, dict)]
    if len(entries) < len(value):
        raise TypeError("an entry of chat_template is not an object")
    return entries


def _named(entry: Mapping[str, object]) -> tuple[str, str]:
    name, template = entry.get("name"), entry.get("template")
    if not isinstance(name, str) or not isinstance(template, str):
        raise TypeError("an entry of chat_template needs a name and a template")
    return name, template
