"""How made-up traffic is written: a file, or a word for one of those that come with kvgate.

    hours: 24
    rate: 5                             # requests a second, all tenants together, on average over the day
    tenants:
      chat:
        share: 6                        # of all requests, relative to the others
        prompt: lognormal:350:4000      # lengths as `kvgate load` has them
        output: lognormal:220:1400
        max_tokens: unset               # what the client asks for: unset, exact, 4x (of the real length), or a number
        daily: 60%                      # how far the rate swings about its mean over a day; the peak is at 15:00
        peak: 15
        bursts: {every: 20m, last: 60s, times: 4}
        class: interactive              # what it asks for; its tenant's own is asked for by nobody
        patience: 60s                   # then a client leaves whose answer has not begun
        stream: on

A word such as `synthetic:chat?rate=5&hours=24` names one of those below, and may say another rate, other hours, or
another swing (`daily`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from kvgate.config import tenant_choices, units
from kvgate.config.document import parse_yaml
from kvgate.errors import ConfigError
from kvgate.load.lengths import Length, read_length
from kvgate.replay.synthetic import PEAK_HOUR, SLOT_S, Bursts, MaxTokens, Synthetic, TenantLoad

PREFIX = "synthetic:"
FILE_ENDINGS = (".yaml", ".yml")
FILE_BYTES_MAX = 256 * 1024
"""A workload is a few lines for each tenant."""
HOURS_MAX = 24 * 31
RATE_MAX = 10_000.0
REQUESTS_MAX = 10_000_000
"""Of one replay: about an hour of computing for each policy."""
TENANTS_MAX = 200
MAX_TOKENS_ALLOWED = "unset, exact, a factor such as 4x, or a number of tokens"

_CHAT: dict[str, Any] = {
    "prompt": "lognormal:350:4000", "output": "lognormal:220:1400", "daily": "60%",
    "bursts": {"every": "30m", "last": "60s", "times": 3},
}  # fmt: skip
_CODE: dict[str, Any] = {
    "prompt": "lognormal:1800:8000", "output": "lognormal:25:400", "daily": "80%", "max_tokens": 512,
    "bursts": {"every": "10m", "last": "30s", "times": 4},
}  # fmt: skip
_AGENTS: dict[str, Any] = {
    "prompt": "lognormal:6000:28000", "output": "lognormal:250:2000", "max_tokens": 4096, "daily": "40%",
    "bursts": {"every": "15m", "last": "2m", "times": 5},
}  # fmt: skip
_BATCH: dict[str, Any] = {
    "prompt": "lognormal:1500:8000", "output": "lognormal:400:1800", "max_tokens": 2048, "class": "batch",
    "bursts": {"every": "2h", "last": "20m", "times": 6},
}  # fmt: skip
NAMED: Mapping[str, dict[str, Any]] = {
    "chat": {"tenants": {"chat": _CHAT}},
    "code": {"tenants": {"code": _CODE}},
    "agents": {"tenants": {"agents": _AGENTS}},
    "batch": {"tenants": {"batch": _BATCH}},
    "mixed": {
        "tenants": {
            "chat": {**_CHAT, "share": 6}, "code": {**_CODE, "share": 3}, "batch": {**_BATCH, "share": 1},
        }
    },
}  # fmt: skip
"""Assumed, not measured: lengths and swings of the order that the public traces have."""
_KEYS = ("hours", "rate", "tenants")
_TENANT_KEYS = (
    "share", "prompt", "output", "max_tokens", "daily", "peak", "bursts", "class", "patience", "stream",
)  # fmt: skip


def is_synthetic(text: str) -> bool:
    return text.startswith(PREFIX) or text.endswith(FILE_ENDINGS)


def read_synthetic(text: str) -> Synthetic:
    """A word or a file. Raises ConfigError."""
    found = _named(text) if text.startswith(PREFIX) else _synthetic(text, _document(Path(text)))
    if found.expected > REQUESTS_MAX:
        raise ConfigError(
            f"{text}: about {found.expected:,} requests; allowed: at most {REQUESTS_MAX:,}. Take fewer hours"
        )
    return found


def _named(text: str) -> Synthetic:
    name, _, query = text.removeprefix(PREFIX).partition("?")
    if name not in NAMED:
        raise ConfigError(f"{text}: no workload {name!r}; there are {', '.join(NAMED)}, or a FILE.yaml")
    document = {**NAMED[name]}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key == "daily":
            tenants = {tenant: {**load, "daily": value} for tenant, load in document["tenants"].items()}
            document["tenants"] = tenants
        elif key in {"rate", "hours"}:
            document[key] = value
        else:
            raise ConfigError(f"{text}: {key!r} is not allowed; allowed: rate, hours, daily")
    return _synthetic(text, document)


def _document(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(
            f"{path}: larger than {FILE_BYTES_MAX} bytes; a workload is a few lines for each tenant"
        )
    return _mapping(parse_yaml(data, str(path)), str(path), _KEYS)


def _mapping(value: object, origin: str, allowed: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{origin}: has to be a mapping with {', '.join(allowed)}")
    unknown = sorted(str(key) for key in value if key not in allowed)
    if unknown:
        raise ConfigError(f"{origin}: {', '.join(unknown)} is not allowed; allowed: {', '.join(allowed)}")
    return value


def _synthetic(origin: str, document: Mapping[str, Any]) -> Synthetic:
    tenants = document.get("tenants")
    if not isinstance(tenants, dict) or not 1 <= len(tenants) <= TENANTS_MAX:
        raise ConfigError(f"{origin}: tenants has to be a mapping of 1 to {TENANTS_MAX} by name")
    return Synthetic(
        name=origin,
        rate=_number(document.get("rate", 5.0), f"{origin}: rate", RATE_MAX),
        hours=_number(document.get("hours", 24.0), f"{origin}: hours", HOURS_MAX),
        tenants={str(name): _tenant(f"{origin}: tenants.{name}", one) for name, one in tenants.items()},
    )


def _tenant(origin: str, value: object) -> TenantLoad:
    found = _mapping(value, origin, _TENANT_KEYS)
    for key in ("prompt", "output"):
        if key not in found:
            raise ConfigError(f"{origin}.{key}: is missing: a length such as lognormal:350:4000")

    def read(key: str, reader: Any, default: Any = None) -> Any:
        return _read(f"{origin}.{key}", found[key], reader) if key in found else default

    return TenantLoad(
        prompt=read("prompt", _length),
        output=read("output", _length),
        share=_number(found.get("share", 1.0), f"{origin}.share", 1e6),
        max_tokens=read("max_tokens", _max_tokens, MaxTokens()),
        daily=read("daily", units.share_whole, 0.0),
        peak_hour=_number(found.get("peak", PEAK_HOUR), f"{origin}.peak", 24.0),
        bursts=_bursts(f"{origin}.bursts", found["bursts"]) if "bursts" in found else None,
        priority=read("class", tenant_choices.priority),
        patience_s=read("patience", units.duration_s),
        stream=read("stream", tenant_choices.switch, default=True),
    )


def _bursts(origin: str, value: object) -> Bursts:
    found = _mapping(value, origin, ("every", "last", "times"))
    missing = [key for key in ("every", "last", "times") if key not in found]
    if missing:
        raise ConfigError(f"{origin}: {', '.join(missing)} is missing, as in every: 20m, last: 60s, times: 4")
    every_s, last_s = (_read(f"{origin}.{key}", found[key], units.duration_s) for key in ("every", "last"))
    if last_s < SLOT_S:
        raise ConfigError(f"{origin}.last: {found['last']} is not allowed; allowed: {SLOT_S:g}s or longer")
    return Bursts(every_s, last_s, _number(found["times"], f"{origin}.times", 1000.0))


def _length(value: object) -> Length:
    return read_length(str(value))


def _max_tokens(value: object) -> MaxTokens:
    text = str(value).strip()
    if text == "unset":
        return MaxTokens()
    if text == "exact":
        return MaxTokens(factor=1.0)
    try:
        if text.endswith("x") and 1 <= float(text[:-1]) <= 1000:
            return MaxTokens(factor=float(text[:-1]))
        number = units.count(int(text) if text.isdecimal() else text)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(MAX_TOKENS_ALLOWED)
    return MaxTokens(number)


def _number(value: object, origin: str, most: float) -> float:
    try:
        number = float("" if isinstance(value, bool) else str(value))
    except ValueError:
        number = 0.0
    if not 0 < number <= most:
        raise ConfigError(
            f"{origin}: {value!r} is not allowed; allowed: a number above 0 and at most {most:g}"
        )
    return number


def _read(origin: str, value: object, reader: Any) -> Any:
    try:
        return reader(value)
    except ValueError as error:
        raise ConfigError(f"{origin}: {value!r} is not allowed; allowed: {error}") from error
