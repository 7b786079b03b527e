"""The tiny model's folder. No engine is needed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from vllm.model import VOCABULARY, write_model

if TYPE_CHECKING:
    from pathlib import Path


def test_the_folder_is_the_same_every_time(tmp_path: Path) -> None:
    write_model(tmp_path / "a")
    write_model(tmp_path / "b")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert "config.json" in files
    assert "tokenizer.json" in files
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_every_id_the_model_can_sample_decodes(tmp_path: Path) -> None:
    write_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == VOCABULARY
    assert all(tokenizer.id_to_token(number) is not None for number in range(VOCABULARY))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["vocab_size"] == VOCABULARY
    assert config["eos_token_id"] == tokenizer.token_to_id("<|eos|>")


def test_text_survives_the_tokenizer(tmp_path: Path) -> None:
    write_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "A proxy reserves blocks, 37. Ünïcödé 好 🙂"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
