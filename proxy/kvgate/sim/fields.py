"""Reading JSON bodies as vLLM's models do: lenient where pydantic is, and refused in its words.

Only what the simulator acts on is read; unknown fields are accepted, as there.
"""

from __future__ import annotations

import json
from typing import Any

from kvgate.sim.errors import RequestRefused, bad_request, schema_error

Body = dict[str, Any]


def read_object(raw: bytes) -> Body:
    """The JSON object in a body. Raises `RequestRefused`."""
    if not raw:
        raise schema_error("missing", "body", "Field required", "None")
    try:
        body = json.loads(raw)
    except json.JSONDecodeError as error:
        context = f", 'ctx': {{'error': '{error.msg}'}}"
        raise schema_error(
            "json_invalid", f"body.{error.pos}", "JSON decode error", "<dict of 0 items>", context
        ) from error
    except (ValueError, RecursionError) as error:  # not UTF-8, or a number of thousands of digits
        raise RequestRefused(400, "There was an error parsing the body", "Bad Request") from error
    if not isinstance(body, dict):
        shown = f"<list of {len(body)} items>" if isinstance(body, list) else str(body)
        message = "Input should be a valid dictionary or object to extract fields from"
        raise schema_error("model_attributes_type", "body", message, shown)
    return body


def required(body: Body, name: str) -> Any:
    if name not in body:
        raise schema_error("missing", f"body.{name}", "Field required", f"<dict of {len(body)} items>")
    return body[name]


def integer(body: Body, name: str) -> int | None:
    """An int; None when unset or null. Numbers in strings and whole floats are taken as ints."""
    value = body.get(name)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        message = "Input should be a valid integer, got a number with a fractional part"
        raise schema_error("int_from_float", f"body.{name}", message, str(value))
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError as error:
            message = "Input should be a valid integer, unable to parse string as an integer"
            raise schema_error("int_parsing", f"body.{name}", message, value) from error
    raise schema_error("int_type", f"body.{name}", "Input should be a valid integer", str(value))


def strict_integer(body: Body, name: str) -> int | None:
    """An int and nothing that could become one."""
    value = body.get(name)
    if value is None or isinstance(value, int):
        return value
    raise schema_error("int_type", f"body.{name}", "Input should be a valid integer", str(value))


def flag(body: Body, name: str) -> bool:
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    if value in (0, 1):
        return bool(value)
    message = "Input should be a valid boolean"
    raise schema_error("bool_type", f"body.{name}", message, str(value))


def number(body: Body, name: str) -> float | None:
    value = body.get(name)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise schema_error("float_type", f"body.{name}", "Input should be a valid number", str(value))


def listing(body: Body, name: str) -> list[Any]:
    """A required list."""
    value = required(body, name)
    if isinstance(value, list):
        return value
    raise schema_error("list_type", f"body.{name}", "Input should be a valid list", str(value)[:40])


def check_sampling(body: Body, n: int) -> None:
    """The sampling parameters that vLLM refuses and clients get wrong."""
    temperature = number(body, "temperature")
    if temperature is not None and temperature < 0:
        shown = float(temperature)
        raise bad_request(f"temperature must be non-negative, got {shown}.", "temperature", shown)
    if n < 1:
        raise bad_request(f"n must be at least 1, got {n}.")
    if n > 1 and temperature is not None and temperature == 0:
        raise bad_request(f"n must be 1 when using greedy sampling, got {n}.")
