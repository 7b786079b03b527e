"""What lies in a model's folder: its `config.json`, and how large its weights are."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING

import msgspec

from kvgate.config.model_file import CONFIG_BYTES_MAX
from kvgate.config.model_file import read_config as read_file
from kvgate.errors import ConfigError
from kvgate.planner.sizes import Size

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CONFIG_BYTES_MAX", "read_config", "weights_size"]

INDEX = "model.safetensors.index.json"
INDEX_BYTES_MAX = 64 * 1024 * 1024
"""A line for each tensor: the largest models with experts have some 10 MB."""


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def read_config(path: Path) -> dict[str, object]:
    """The configuration in a file, or in the folder of a model. Raises ConfigError."""
    try:
        return read_file(path)
    except ValueError as error:
        raise ConfigError(f"--model: {error}") from error


def weights_size(path: Path) -> Size | None:
    """The weight files' size in a model's folder; None where there are none (or only a configuration).

    Some folders have the weights twice, in parts and in one file. As vLLM does, those are taken that the index names.
    Raises ConfigError for a file that is not there in full, such as a link into a cache that was emptied.
    """
    if not path.is_dir():
        return None
    named = _indexed(path / INDEX)
    files = [file for file in path.glob("*.safetensors") if not named or file.name in named]
    try:
        total = sum(file.stat().st_size for file in files)
    except OSError as error:
        raise ConfigError(
            f"--model: {error.filename} cannot be read: {error.strerror}; give --weights, or load it again"
        ) from error
    return Size(Fraction(total), "B") if total else None


def _indexed(file: Path) -> frozenset[str]:
    """The names of weight files in an index; none where there is no index, or none that can be read."""
    with suppress(OSError, msgspec.MsgspecError, RecursionError), file.open("rb") as stream:
        return frozenset(msgspec.json.decode(stream.read(INDEX_BYTES_MAX), type=_Index).weight_map.values())
    return frozenset()
