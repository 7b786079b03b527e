"""The kinds of values in a policy file: each with its reader and with what an editor may know of it.

None, the default of every key, is "not written"; no reader takes it, so an empty value is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, WithJsonSchema

from kvgate.config import choices, model_file, schema_values, tenant_choices, units
from kvgate.config.identity import JWT_ALGORITHMS
from kvgate.config.section import secret
from kvgate_policies.types import CLASSES, Mode, Order, PriorityClass, Reservation


def _one_of(*values: object) -> WithJsonSchema:
    return WithJsonSchema({"enum": list(values)})


Seconds = Annotated[float | None, BeforeValidator(units.duration_s), WithJsonSchema(schema_values.DURATION)]
Count0 = Annotated[int | None, BeforeValidator(units.count), WithJsonSchema(schema_values.count(0))]
Count1 = Annotated[int | None, BeforeValidator(choices.count_1), WithJsonSchema(schema_values.count(1))]
EngineBlocks = Annotated[
    int | None, BeforeValidator(choices.engine_blocks), WithJsonSchema(schema_values.count(2))
]
CountOrNone = Annotated[
    int | None,
    BeforeValidator(tenant_choices.count_or_none),
    WithJsonSchema(schema_values.count(1, "none")),
]
Share = Annotated[float | None, BeforeValidator(units.share), WithJsonSchema(schema_values.SHARE_BELOW)]
ShareWhole = Annotated[float | None, BeforeValidator(units.share_whole), WithJsonSchema(schema_values.SHARE)]
Limit = Annotated[
    tuple[float, int | None] | None,
    BeforeValidator(tenant_choices.limit),
    WithJsonSchema(schema_values.LIMIT),
]
Weight = Annotated[
    float | None,
    BeforeValidator(tenant_choices.weight),
    WithJsonSchema(
        {"type": "number", "minimum": tenant_choices.WEIGHT_MIN, "maximum": tenant_choices.WEIGHT_MAX}
    ),
]
Class = Annotated[PriorityClass | None, BeforeValidator(tenant_choices.priority), _one_of(*map(str, CLASSES))]
OrderName = Annotated[
    Order | None, BeforeValidator(tenant_choices.order), _one_of("fifo", "deadline", "shortest")
]
ModeName = Annotated[
    Mode | None, BeforeValidator(tenant_choices.mode), _one_of("enforce", "observe", "off", False)
]  # fmt: skip
Switch = Annotated[bool | None, BeforeValidator(tenant_choices.switch), _one_of("on", "off", True, False)]
OverloadStatus = Annotated[
    int | None, BeforeValidator(choices.overload_status), _one_of(*choices.OVERLOAD_STATUSES)
]
PoolName = Annotated[str, BeforeValidator(choices.pool_name), WithJsonSchema(schema_values.POOL_NAME)]
Text = Annotated[str | None, BeforeValidator(choices.text), WithJsonSchema(schema_values.TEXT)]
Backends = Annotated[
    tuple[str, ...],
    BeforeValidator(choices.backends),
    WithJsonSchema(
        {"type": "array", "minItems": 1, "items": schema_values.BACKEND, "uniqueItems": True}
    ),
]  # fmt: skip
Aliases = Annotated[
    tuple[str, ...],
    BeforeValidator(choices.aliases),
    WithJsonSchema({"type": "array", "minItems": 1, "items": schema_values.ALIAS, "uniqueItems": True}),
]
ModelConfig = Annotated[
    str | Mapping[str, object] | None,
    BeforeValidator(model_file.written),
    WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, {"type": "object", "minProperties": 1}]}),
]
PromptTokens = Annotated[
    str | None,
    BeforeValidator(choices.prompt_tokens),
    WithJsonSchema({"type": "string", "pattern": "^(learned|backend|local:.+)$"}),
]
ReservationKind = Annotated[
    Reservation | None, BeforeValidator(choices.reservation), _one_of("guaranteed", "forecast")
]
Risk = Annotated[float | None, BeforeValidator(choices.risk), WithJsonSchema(schema_values.RISK)]
LedgerUrl = Annotated[
    str | None, BeforeValidator(choices.ledger_url_in_a_file), WithJsonSchema(schema_values.LEDGER_URL)
]
OnFailure = Annotated[
    Literal["local", "closed", "open"] | None,
    BeforeValidator(choices.on_failure),
    _one_of("local", "closed", "open"),
]
TenantName = Annotated[
    str,
    BeforeValidator(tenant_choices.tenant_name),
    WithJsonSchema(schema_values.TENANT_NAME),
]
UnknownTenant = Annotated[
    str | None,
    BeforeValidator(tenant_choices.unknown_tenant),
    WithJsonSchema(schema_values.UNKNOWN_TENANT),
]


PoolPattern = Annotated[str, BeforeValidator(choices.alias), WithJsonSchema(schema_values.ALIAS)]


def some(what: str, count_max: int | None = None) -> Callable[[object], object]:
    """A reader for a mapping by name that is not empty. A wrong value is not repeated: it may hold a key."""

    def read(value: object) -> object:
        if not isinstance(value, Mapping) or not value:
            raise secret(f"a mapping with {what}, one or more")
        if count_max is not None and len(value) > count_max:
            raise secret(f"at most {count_max} {what}; there are {len(value)}")
        return value

    return read


def _version(value: object) -> Literal[1]:
    if value != 1 or isinstance(value, bool):
        raise ValueError("1")
    return 1


Version = Annotated[Literal[1], BeforeValidator(_version)]


def _algorithms(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(one in JWT_ALGORITHMS for one in value):
        raise ValueError(f"a list of {', '.join(JWT_ALGORITHMS)}")
    return tuple(value)


Algorithms = Annotated[
    tuple[str, ...] | None,
    BeforeValidator(_algorithms),
    WithJsonSchema({"type": "array", "minItems": 1, "items": {"enum": list(JWT_ALGORITHMS)}}),
]
