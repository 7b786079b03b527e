"""Curves and models that several tests of the policies begin with."""

from __future__ import annotations

import json
from pathlib import Path

from kvgate_policies.forecast_lengths import LengthHistogram
from kvgate_policies.forecast_survival import Survival, prior, survival
from kvgate_policies.model_shape import ModelShape
from kvgate_policies.model_shape_read import read_model

MODELS = Path(__file__).with_name("models")


def learned(lengths: list[int]) -> Survival:
    """What is known after sequences of these lengths."""
    seen = LengthHistogram()
    for length in lengths:
        seen.start()
        seen.reach(0, length)
        seen.end(length)
    return survival(seen, prior())


def load(name: str) -> ModelShape:
    """The model of a `config.json` in `models`."""
    return read_model(json.loads((MODELS / f"{name}.json").read_text()))
