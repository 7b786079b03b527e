"""A model's own `config.json`, from a file, a model's folder, or written out in a policy: its KV layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvgate_policies.model_shape_read import read_model

if TYPE_CHECKING:
    from kvgate_policies.model_shape import ModelShape

CONFIG_BYTES_MAX = 4 * 1024 * 1024
"""A configuration is a few kilobytes; the largest seen, with a quantization list of all layers, is under 1 MB."""

ALLOWED = "the path of the model's config.json or of its folder, or what is in it"


def read_config(path: Path) -> dict[str, object]:
    """The configuration in a file, or in the folder of a model. Raises ValueError."""
    file = path
    try:
        file = path / "config.json" if path.is_dir() else path
        with file.open("rb") as stream:
            data = stream.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    if len(data) > CONFIG_BYTES_MAX:
        raise ValueError(f"{file} is larger than {CONFIG_BYTES_MAX} bytes: not a config.json")
    try:
        return msgspec.json.decode(data, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise ValueError(f"{file} is not a JSON object: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{file} is nested too deeply: not a config.json") from error


def written(value: object) -> str | Mapping[str, object]:
    """What a policy file may say: a path, or the configuration itself. Nothing is read here."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
        return dict(value)
    raise ValueError(ALLOWED)


def model_of(value: object, folder: Path = Path()) -> ModelShape:
    """The model's layers; a path counts from `folder`. Raises ValueError."""
    said = written(value)
    return read_model(read_config(folder / said) if isinstance(said, str) else said)
