"""A change of a tenant's limits at run time, for a while: what may be changed, how it is written, what is refused.

Pure. It is kept by the ledger as text, so that all processes have it, and applied over everything the file says.
Values are read as in the file (`50%`, `200k`, `10s`); a refusal names the field, the value and what is allowed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from kvgate.config import choices, tenant_choices, units
from kvgate.config.given import wrong
from kvgate.config.layers import FIELDS, Layer, Value
from kvgate.errors import ConfigError
from kvgate_policies.types import Mode, PriorityClass

UNTIL_CHARS_MAX = 64


@dataclass(frozen=True, slots=True)
class Override:
    """What a change at run time sets; None leaves a field as it is."""

    weight: float | None = None
    guarantee: float | None = None
    limit: float | None = None
    """As a share. It replaces a limit in tokens, as `limit_tokens` replaces one as a share."""
    limit_tokens: int | None = None
    priority: PriorityClass | None = None
    queue_depth_max: int | None = None
    queue_wait_s_max: float | None = None
    max_tokens_cap: int | None = None
    tokens_per_minute: int | None = None
    requests_per_minute: int | None = None
    mode: Mode | None = None
    until: str = ""
    """When it ends, for people (ISO 8601); the ledger is what ends it."""

    @property
    def changes(self) -> Mapping[str, object]:
        """The fields that are set."""
        named = {name: getattr(self, name) for name in CHANGEABLE}
        return {name: value for name, value in named.items() if value is not None}

    @classmethod
    def of_json(cls, data: object) -> Self:
        """The change that a mapping of fields asks for. Raises ConfigError with a line for each mistake."""
        if not isinstance(data, Mapping):
            raise ConfigError(wrong("override", data, f"a mapping of {', '.join(CHANGEABLE)}"))
        values, errors = _read(data)
        if errors:
            raise ConfigError("\n".join(errors))
        return cls(**values)

    @classmethod
    def of_text(cls, text: str) -> Self:
        """The inverse of `text`. Raises ConfigError."""
        try:
            return cls.of_json(json.loads(text))
        except ValueError as error:
            raise ConfigError(f"override: not JSON: {error}") from error

    def to_json(self) -> dict[str, object]:
        """The set fields in base units, as `of_json` takes them."""
        return dict(self.changes) | ({"until": self.until} if self.until else {})

    def text(self) -> str:
        """As the ledger keeps it."""
        return json.dumps(self.to_json())

    def layer(self) -> Layer:
        """What it puts over the file."""
        origin = f"override until {self.until}" if self.until else "override"
        values = dict(self.changes)
        if "limit" in values or "limit_tokens" in values:
            values = {"limit": 1.0, "limit_tokens": None} | values
        return {name: Value(value, origin) for name, value in values.items()}


def _seconds(value: object) -> float:
    """A duration; a bare number is in seconds here, where the field's name says so."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return units.duration_s(f"{value:.6f}s")
    return units.duration_s(value)


CHANGEABLE: Mapping[str, Callable[[object], object]] = {
    "weight": tenant_choices.weight,
    "guarantee": units.share_whole,
    "limit": tenant_choices.limit_share,
    "limit_tokens": choices.count_1,
    "priority": tenant_choices.priority,
    "queue_depth_max": choices.count_1,
    "queue_wait_s_max": _seconds,
    "max_tokens_cap": choices.count_1,
    "tokens_per_minute": choices.count_1,
    "requests_per_minute": choices.count_1,
    "mode": tenant_choices.mode,
}
"""Each field that a change may set, with its reader."""
CALLED: Mapping[str, str] = {"priority": "class"}
"""Fields that have another name for people than in the code."""


def _read(data: Mapping[Any, object]) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    errors: list[str] = []
    for key, value in data.items():
        try:
            if key == "limit":
                values |= _limit(value)
            else:
                values[str(key)] = _reader(key)(value)
        except KeyError:
            errors.append(_unchangeable(str(key), value))
        except ValueError as error:
            errors.append(wrong(f"override: {key}", value, str(error)))
    return values, errors


def _unchangeable(key: str, value: object) -> str:
    allowed = ", ".join(CALLED.get(name, name) for name in CHANGEABLE)
    if key in FIELDS:
        return wrong(f"override: {key}", value, f"in the policy file alone; at run time only {allowed}")
    return f"override: {key[:80]!r} cannot be changed; allowed: {allowed}"


def _reader(key: object) -> Callable[[object], object]:
    return _until if key == "until" else CHANGEABLE[str(key)]


def _limit(value: object) -> dict[str, object]:
    """As in the file, where one key takes a share or tokens."""
    share, tokens = tenant_choices.limit(value)
    return {"limit": share} if tokens is None else {"limit_tokens": tokens}


def _until(value: object) -> str:
    if not isinstance(value, str) or len(value) > UNTIL_CHARS_MAX or not value.isprintable():
        raise ValueError("a time such as 2030-01-31T12:00:00Z")
    return value


if {one.name for one in fields(Override)} != {*CHANGEABLE, "until"}:  # pragma: no cover
    raise AssertionError("a field without a reader")
