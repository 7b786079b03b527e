"""The step-time profiles: those that come with the package (`profiles.yaml`), and one's own in files like it."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from kvgate.errors import ConfigError
from kvgate_policies.engine_model import StepProfile

_MS = 1e-3
FIELDS = ("step_ms", "decode_ms_per_seq", "kv_ms_per_token", "prefill_ms_per_token")
FILE_ENDINGS = (".yaml", ".yml")
FILE_BYTES_MAX = 64 * 1024
"""A profile is a few hundred bytes."""


def load_profiles() -> dict[str, StepProfile]:
    """All profiles by name. Raises `ConfigError` for one that doesn't say where its numbers come from."""
    text = files("kvgate.sim").joinpath("profiles.yaml").read_text(encoding="utf-8")
    return {name: _profile(name, fields) for name, fields in yaml.safe_load(text).items()}


def find_profile(profile: str | StepProfile) -> StepProfile:
    """The profile of this name, or of a file that ends in .yaml; `NAME:FACTOR` is the same one, that many times
    slower.

    Raises `ConfigError` naming the ones there are, for a file without one, or for a factor that is no positive
    number.
    """
    if isinstance(profile, StepProfile):
        return profile
    name, _, factor = profile.rpartition(":") if _has_factor(profile) else (profile, "", "")
    if name.endswith(FILE_ENDINGS):
        found = read_profile(Path(name))
        return _slowed(found, factor) if factor else found
    profiles = load_profiles()
    if name not in profiles:
        raise ConfigError(
            f"no step profile {name!r}: there are {', '.join(profiles)}, or a FILE.yaml of `kvgate calibrate`"
        )
    return _slowed(profiles[name], factor) if factor else profiles[name]


def _has_factor(profile: str) -> bool:
    return ":" in profile and not profile.endswith(FILE_ENDINGS)


def read_profile(path: Path) -> StepProfile:
    """The one profile of a file. Raises `ConfigError` saying what is wrong with it."""
    try:
        with path.open("rb") as opened:
            found = yaml.safe_load(opened.read(FILE_BYTES_MAX))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict) or len(found) != 1:
        raise ConfigError(
            f"{path}: not one profile, which is a name with {', '.join(FIELDS)} and source below it"
        )
    [(name, fields)] = found.items()
    if not isinstance(fields, dict):
        raise ConfigError(f"{path}: {name} has no numbers: {', '.join(FIELDS)} and source go below it")
    return _profile(str(name), fields, str(path))


def profile_text(profile: StepProfile) -> str:
    """As `read_profile` reads it."""
    times_s = (profile.step_s, profile.decode_s_per_seq, profile.kv_s_per_token, profile.prefill_s_per_token)
    fields: dict[str, object] = {
        name: float(f"{seconds / _MS:.4g}") for name, seconds in zip(FIELDS, times_s, strict=True)
    }
    return str(
        yaml.safe_dump({profile.name: fields | {"source": profile.source}}, sort_keys=False, width=100)
    )


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


def _profile(name: str, fields: dict[str, Any], origin: str = "profiles.yaml") -> StepProfile:
    source = str(fields.get("source") or "").strip()
    if not source:
        raise ConfigError(f"{origin}: {name} has no source")
    unknown = sorted(str(field) for field in fields.keys() - {*FIELDS, "source"})
    if unknown:
        raise ConfigError(f"{origin}: {name} has {', '.join(unknown)}; allowed: {', '.join(FIELDS)}, source")
    if "step_ms" not in fields:
        raise ConfigError(f"{origin}: {name} has no step_ms")
    step_s, decode_s, kv_s, prefill_s = (
        _seconds(fields.get(field, 0.0), f"{origin}: {name}.{field}") for field in FIELDS
    )
    return StepProfile(name, step_s, decode_s, kv_s, prefill_s, source)


def _seconds(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"{where}: {value!r} is not allowed; allowed: milliseconds, 0 or more")
    return value * _MS
