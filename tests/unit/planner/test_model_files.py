"""A model's folder: its configuration, and the size of what lies beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvgate.errors import ConfigError
from kvgate.planner.model_files import CONFIG_BYTES_MAX, read_config, weights_size


def test_a_file_or_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    assert read_config(tmp_path) == read_config(tmp_path / "config.json") == {"hidden_size": 8}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is not a JSON object"),
        (b"[1]", "is not a JSON object"),
        (b" " * (CONFIG_BYTES_MAX + 1), "is larger than"),
        (b'{"a": ' + b"[" * 100_000, "is nested too deeply"),
    ],
)
def test_what_is_no_configuration(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        read_config(tmp_path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_config(tmp_path)


def test_the_weights_are_the_files(tmp_path: Path) -> None:
    assert weights_size(tmp_path) is None
    for name, size in (("a.safetensors", 300), ("b.safetensors", 700), ("readme.md", 50)):
        (tmp_path / name).write_bytes(b"\0" * size)
    found = weights_size(tmp_path)
    assert found is not None
    assert found.bytes == 1000
    (tmp_path / "config.json").write_text(json.dumps({}))
    assert weights_size(tmp_path / "config.json") is None


def test_weights_that_are_there_twice_count_once(tmp_path: Path) -> None:
    for name, size in (
        ("consolidated.safetensors", 1000),
        ("model-1.safetensors", 400),
        ("model-2.safetensors", 600),
    ):
        (tmp_path / name).write_bytes(b"0" * size)
    assert str(weights_size(tmp_path)) == "2,000 B"
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    assert str(weights_size(tmp_path)) == "1,000 B"
    index.write_text("no index")
    assert str(weights_size(tmp_path)) == "2,000 B"


def test_a_link_to_weights_that_are_gone(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"model\.safetensors cannot be read: No such file"):
        weights_size(tmp_path)
