"""A section of a policy file: a mapping of known keys, and every other key refused with those that are allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

NOT_YET = "is not in this version"


class Section(BaseModel):
    """A mapping of known keys. The docstring of a field is its description in the schema and the reference."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
    later: ClassVar[Mapping[str, str]] = {}
    """Keys of the full format that this version refuses, and what to do instead."""

    @model_validator(mode="before")
    @classmethod
    def known_keys(cls, data: Any) -> Any:
        names = keys_of(cls)
        allowed = ", ".join(names)
        if not isinstance(data, Mapping):
            raise PydanticCustomError("not_a_section", "keys and values: {allowed}", {"allowed": allowed})
        for key in data:
            if key in cls.later:
                raise bad_key(key, f"{NOT_YET}{cls.later[key]}")
            if key not in names:
                raise bad_key(key, f"unknown key; allowed here: {allowed}")
        return data


def keys_of(section: type[BaseModel]) -> dict[str, str]:
    """Each key as it is written → its field; they differ where Python keeps a word for itself (`class`, `from`)."""
    return {one.alias or name: name for name, one in section.model_fields.items()}


def bad_key(key: object, what: str) -> PydanticCustomError:
    """The refusal of a key, by its place."""
    return PydanticCustomError("bad_key", "{what}", {"key": str(key), "what": what})


def secret(allowed: str) -> PydanticCustomError:
    """The refusal of a value that may be a secret, and so is not repeated."""
    return PydanticCustomError("secret", "{allowed}", {"allowed": allowed})
