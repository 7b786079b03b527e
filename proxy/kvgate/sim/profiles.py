"""The step-time profiles that come with the package (`profiles.yaml`)."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.resources import files

import yaml

from kvgate.errors import ConfigError
from kvgate_policies.engine_model import StepProfile

_MS = 1e-3


def load_profiles() -> dict[str, StepProfile]:
    """All profiles by name. Raises `ConfigError` for one that doesn't say where its numbers come from."""
    text = files("kvgate.sim").joinpath("profiles.yaml").read_text(encoding="utf-8")
    return {name: _profile(name, fields) for name, fields in yaml.safe_load(text).items()}


def find_profile(profile: str | StepProfile) -> StepProfile:
    """The profile of this name; `NAME:FACTOR` is the same one, that many times slower.

    Raises `ConfigError` naming the ones there are, or for a factor that is no positive number.
    """
    if isinstance(profile, StepProfile):
        return profile
    profiles = load_profiles()
    name, _, factor = profile.partition(":")
    if name not in profiles:
        raise ConfigError(f"no step profile {name!r}: there are {', '.join(profiles)}")
    return _slowed(profiles[name], factor) if factor else profiles[name]


def _slowed(profile: StepProfile, factor: str) -> StepProfile:
    """All terms alike, so that the same steps take place in the same order."""
    try:
        slower = float(factor)
    except ValueError:
        slower = 0.0
    if not 0 < slower < math.inf:
        raise ConfigError(f"step profile {profile.name}:{factor}: the factor must be a positive number")
    return replace(
        profile,
        step_s=profile.step_s * slower,
        decode_s_per_seq=profile.decode_s_per_seq * slower,
        kv_s_per_token=profile.kv_s_per_token * slower,
        prefill_s_per_token=profile.prefill_s_per_token * slower,
    )


def _profile(name: str, fields: dict[str, float | str]) -> StepProfile:
    source = str(fields.pop("source", "")).strip()
    if not source:
        raise ConfigError(f"profiles.yaml: {name} has no source")
    times_s = {key: float(value) * _MS for key, value in fields.items()}
    return StepProfile(
        name,
        step_s=times_s.pop("step_ms"),
        decode_s_per_seq=times_s.pop("decode_ms_per_seq", 0.0),
        kv_s_per_token=times_s.pop("kv_ms_per_token", 0.0),
        prefill_s_per_token=times_s.pop("prefill_ms_per_token", 0.0),
        source=source,
    )
