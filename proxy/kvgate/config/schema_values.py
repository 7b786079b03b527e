"""What an editor may know of the values in a policy file: fragments of JSON Schema, as strict as their readers.

Pure. A bound of a number that is written with its unit (`30s`, `1.5M`, `60%`) becomes a pattern, since JSON Schema
compares no numbers inside of text. What a fragment takes, the reader of the same value takes; a reader may take a
little more, such as spaces around a number.
"""

from __future__ import annotations

from typing import Any

from kvgate.config.tenant_choices import REJECT, RESERVED
from kvgate.config.units import COUNT_MAX, DURATION_S_MAX
from kvgate_policies.forecast_fit import RISK_MAX

Schema = dict[str, Any]

NAME_CHARS_MAX = 200
PORT_MAX = 65535
_NOT_ZERO = "(?=[^1-9]*[1-9])"
"""At the beginning of a pattern: some digit is not 0."""


def _up_to(most: int) -> str:
    """A pattern for the whole numbers from 0 to `most`, zeros in front allowed."""
    digits = str(most)
    parts = [f"[0-9]{{1,{len(digits) - 1}}}"] if len(digits) > 1 else []
    for place, digit in enumerate(digits):
        lower, left = int(digit) - 1, len(digits) - place - 1
        if lower >= 0 and (place or lower or not left):
            parts.append(f"{digits[:place]}[0-{lower}]" + (f"[0-9]{{{left}}}" if left else ""))
    return f"0*({'|'.join([*parts, digits])})"


def _decimal(most: int, decimals: str = "[0-9]+") -> str:
    """The same with decimals, of which the largest number has none but zeros."""
    return rf"({_up_to(most - 1)}(\.{decimals})?|{_up_to(most)}(\.0+)?)"


def _text(pattern: str) -> Schema:
    return {"type": "string", "pattern": f"^{pattern}$"}


_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
DURATION = _text(
    f"{_NOT_ZERO}({'|'.join(_decimal(int(DURATION_S_MAX / one)) + unit for unit, one in _UNITS_S.items())})"
)
_THOUSANDS = f"{_decimal(COUNT_MAX // 1000, '[0-9]{1,3}0*')}k"
_MILLIONS = f"{_decimal(COUNT_MAX // 1_000_000, '[0-9]{1,6}0*')}M"
_COUNT = rf"({_up_to(COUNT_MAX)}(\.0+)?|{_THOUSANDS}|{_MILLIONS})"
TOKENS = _text(f"{_NOT_ZERO}{_COUNT} tokens")

_PERCENT_BELOW_100 = r"[0-9]{1,2}(\.[0-9]+)?%"
_PERCENT = rf"(100(\.0+)?%|{_PERCENT_BELOW_100})"
SHARE_BELOW: Schema = {
    "anyOf": [{"type": "number", "minimum": 0, "exclusiveMaximum": 1}, _text(_PERCENT_BELOW_100)]
}
SHARE: Schema = {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, _text(_PERCENT)]}
LIMIT: Schema = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        _text(_NOT_ZERO + _PERCENT),
        TOKENS,
    ]
}
RISK: Schema = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0, "maximum": RISK_MAX},
        _text(f"{_NOT_ZERO}{_decimal(round(RISK_MAX * 100))}%"),
    ]
}


def count(least: int, *words: str) -> Schema:
    """A whole number from 0, 1 or 2, or one of some words."""
    not_one = r"(?!0*(1(\.0+)?|\.0010*k|\.0000010*M)$)" if least > 1 else ""
    written = _text(f"{_NOT_ZERO if least else ''}{not_one}{_COUNT}")
    choices = [{"type": "integer", "minimum": least, "maximum": COUNT_MAX}, written]
    return {"anyOf": [*choices, *({"const": word} for word in words)]}


TEXT: Schema = {"type": "string", "minLength": 1}
ALIAS: Schema = TEXT | {"maxLength": NAME_CHARS_MAX, "pattern": "[^*]"}
POOL_NAME: Schema = TEXT | {"maxLength": NAME_CHARS_MAX, "pattern": r"^[^*\s]([^*]*[^*\s])?$"}
_TENANT = "[A-Za-z0-9][A-Za-z0-9._@:+-]{0,127}"
TENANT_NAME = _text(f"(?!({'|'.join(sorted({*RESERVED, REJECT}))})$){_TENANT}")
UNKNOWN_TENANT = _text(_TENANT)
VARIABLE = _text("[A-Za-z_][A-Za-z0-9_]*")

NETWORK = _text(r"([0-9]{1,3}(\.[0-9]{1,3}){3}|[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)(/[0-9.]+)?")
_PORT = f"(:{_NOT_ZERO}{_up_to(PORT_MAX)})?"
_HOST = r"(\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]+)"
BACKEND: Schema = _text(rf"https?://{_HOST}{_PORT}(/[^\s?#]*)?") | {"not": {"pattern": "/v1/*$"}}
JWKS_URL = _text(rf"(https://{_HOST}|http://(localhost|127\.0\.0\.1|\[::1\])){_PORT}([/?#]\S*)?")
LEDGER_URL = _text(r"(memory://|rediss?(\+sentinel|\+cluster)?://[^\s/@]+(/[^\s@]*)?)")
