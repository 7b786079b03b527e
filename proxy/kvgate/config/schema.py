"""The format of the policy file as JSON Schema, for editors, and as a table, for people: both made from the models.

An editor checks with it what can be said of one value; what several values contradict is for `kvgate policy check`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from kvgate.config.policy import Policy

TITLE = "kvgate policy"
DRAFT = "https://json-schema.org/draft/2020-12/schema"


class _Lean(GenerateJsonSchema):
    """Without titles that repeat the name of the key, and without the default None, which nobody may write."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])


def policy_schema() -> dict[str, Any]:
    """The schema of a whole file."""
    made = Policy.model_json_schema(schema_generator=_Lean)
    for section in (made, *made["$defs"].values()):
        section.pop("title", None)
    return {"$schema": DRAFT, "title": TITLE, **made}


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the format."""

    path: str
    """`tenants.NAME.queue.wait`; NAME stands for any name, [] for an entry of a list."""
    meaning: str


def keys_of_the_format() -> Iterator[Key]:
    """Every key, in the order of the models. What a tenant's section has in common with `defaults` is listed there."""
    schema = policy_schema()
    yield from _keys(schema, schema["$defs"], "", set())


def _keys(section: Mapping[str, Any], known: Mapping[str, Any], at: str, seen: set[str]) -> Iterator[Key]:
    for name, described in section["properties"].items():
        path, inside = f"{at}{name}", list(_sections_in(described))
        if name in _of_defaults(section, known):
            continue
        yield Key(path, _meaning(described) or _meaning(known[inside[0][1]]))
        for suffix, reference in inside:
            if reference not in seen:
                seen.add(reference)
                yield from _keys(known[reference], known, f"{path}{suffix}.", seen)


def _meaning(described: Mapping[str, Any]) -> str:
    return " ".join(described.get("description", "").split())


def _of_defaults(section: Mapping[str, Any], known: Mapping[str, Any]) -> frozenset[str]:
    """The keys that a section shares with `defaults`, if it has all of them and more."""
    common = frozenset(known["Limits"]["properties"])
    return common if common < section["properties"].keys() else frozenset()


def _sections_in(described: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The sections that a key's value may be or hold, with what stands between."""
    if "$ref" in described:
        yield "", described["$ref"].rpartition("/")[2]
    by_name = [described.get("additionalProperties"), *described.get("patternProperties", {}).values()]
    for suffix, held in (*((".NAME", one) for one in by_name), ("[]", described.get("items"))):
        if isinstance(held, Mapping):
            yield from ((suffix, reference) for _, reference in _sections_in(held))
