"""Fields of a `config.json`, read strictly: the right kind, or an error that names the field.

One field has several names across model families; the first that is present counts, in the order given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

from kvgate_policies.model_shape import ModelShapeError

_T = TypeVar("_T")

COUNT = "a whole number from 1"
NESTS = ("text_config", "llm_config", "language_config", "thinker_config", "language_model_config")
"""Where multimodal models keep the part that has a KV cache."""
NUMBER_MAX = 1_000_000_000
"""Of any size in a configuration."""
NESTING_MAX = 4
"""Levels of nesting: two occur (thinker_config.text_config); more is not a model configuration."""


@dataclass(frozen=True, slots=True)
class Fields:
    """One object of the configuration; `path` says where it stands in the file."""

    values: Mapping[str, object]
    path: str = ""

    def has(self, name: str) -> bool:
        """Whether the field is there and isn't null."""
        return self.values.get(name) is not None

    def first(self, *names: str) -> str | None:
        """The first of these names that is there."""
        return next((name for name in names if self.has(name)), None)

    def count(self, *names: str, default: int | None = None) -> int:
        """A whole number from 1. Raises ModelShapeError when there is none and no default."""
        name = self.first(*names)
        if name is not None:
            return self._whole(name, 1)
        if default is None:
            raise self.error(names[0], "is missing", COUNT, other=names[1:])
        return default

    def optional(self, *names: str, least: int = 0) -> int | None:
        """A whole number, or None where it is absent or null."""
        name = self.first(*names)
        return None if name is None else self._whole(name, least)

    def flag(self, name: str) -> bool:
        """A true or false; absent is false."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, f"is {value!r}", "true or false")
        return bool(value)

    def text(self, *names: str) -> str | None:
        name = self.first(*names)
        if name is None:
            return None
        value = self.values[name]
        if not isinstance(value, str):
            raise self.error(name, f"is {value!r}", "a text")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(self._list(name, str, "a list of texts"))

    def numbers(self, name: str) -> tuple[int, ...]:
        return tuple(self._list(name, int, "a list of whole numbers"))

    def inner(self, name: str) -> Fields | None:
        """An object inside; None where it is absent."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, f"is {value!r}", "an object")
        return Fields(cast("Mapping[str, object]", value), f"{self.path}{name}.")

    def inners(self, name: str) -> tuple[Fields, ...]:
        """The objects of a list."""
        found: list[dict[str, object]] = self._list(name, dict, "a list of objects")
        return tuple(Fields(one, f"{self.path}{name}[{place}].") for place, one in enumerate(found))

    def error(self, name: str, found: str, allowed: str, *, other: tuple[str, ...] = ()) -> ModelShapeError:
        instead = f" (and so is {', '.join(other)})" if other else ""
        return ModelShapeError(f"{self.path}{name}: {found}{instead}; allowed: {allowed}")

    def _whole(self, name: str, least: int) -> int:
        value = self.values[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(name, f"is {_short(value)}", f"a whole number from {least}")
        if value > NUMBER_MAX:
            raise self.error(name, f"is {_short(value)}", f"at most {NUMBER_MAX:,}")
        return value

    def _list(self, name: str, of: type[_T], allowed: str) -> list[_T]:
        value = self.values.get(name)
        if not isinstance(value, list):
            raise self.error(name, "is missing" if value is None else f"is {_short(value)}", allowed)
        items = cast("list[object]", value)
        wrong = next((one for one in items if not isinstance(one, of) or isinstance(one, bool)), None)
        if wrong is not None:
            raise self.error(name, f"has {_short(wrong)}", allowed)
        return cast("list[_T]", items)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def text_part(config: Mapping[str, object]) -> Fields:
    """The part of a configuration that describes the decoder: itself, or nested in a multimodal model."""
    fields = Fields(config)
    for _ in range(NESTING_MAX):
        name = next((name for name in NESTS if isinstance(fields.values.get(name), Mapping)), None)
        inner = fields.inner(name) if name else None
        if inner is None:
            break
        fields = inner
    return fields
