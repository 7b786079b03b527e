"""What lies in a model's folder: its `config.json`, and how large its weights are."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import msgspec

from kvgate.errors import ConfigError
from kvgate.planner.sizes import Size

if TYPE_CHECKING:
    from pathlib import Path

CONFIG_BYTES_MAX = 4 * 1024 * 1024
"""A configuration is a few kilobytes; the largest seen, with a quantization list of all layers, is under 1 MB."""


def read_config(path: Path) -> dict[str, object]:
    """The configuration in a file, or in the folder of a model. Raises ConfigError."""
    file = path / "config.json" if path.is_dir() else path
    try:
        with file.open("rb") as stream:
            data = stream.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"--model: {file} cannot be read: {error.strerror}") from error
    if len(data) > CONFIG_BYTES_MAX:
        raise ConfigError(f"--model: {file} is larger than {CONFIG_BYTES_MAX} bytes: not a config.json")
    try:
        return msgspec.json.decode(data, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise ConfigError(f"--model: {file} is not a JSON object: {error}") from error


def weights_size(path: Path) -> Size | None:
    """The weight files' size in a model's folder; None where there are none (or only a configuration)."""
    if not path.is_dir():
        return None
    total = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    return Size(Fraction(total), "B") if total else None
