"""What may be written about a tenant, in the file or in a change at run time.

Pure readers of one value each: they return the value or raise ValueError with what is allowed.
"""

from __future__ import annotations

import re

from kvgate.config import units
from kvgate.config.choices import count_1
from kvgate_policies.types import CLASSES, Mode, Order, PriorityClass

WEIGHT_MIN, WEIGHT_MAX = 0.01, 1000.0
"""So far apart that nobody needs more, so near that a share of the service stays a number one can see."""
WEIGHT_ALLOWED = f"a number from {WEIGHT_MIN:g} to {WEIGHT_MAX:g}"
LIMIT_ALLOWED = "a percentage above 0% and up to 100%, such as 60%, or KV tokens, such as 200k tokens"
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:+-]{0,127}", re.ASCII)
TENANT_ALLOWED = "a name of at most 128 letters, digits and . _ - @ : +, a letter or digit first"
RESERVED = frozenset({"other", "unknown", "all"})
"""Labels of metrics that are no tenant's: those above the cap, requests of nobody that is known, the pool."""
RESERVED_ALLOWED = "another name: `other`, `unknown` and `all` have a meaning in the metrics"
REJECT = "reject"


def weight(value: object) -> float:
    """A share relative to those of others."""
    try:
        number = float("" if isinstance(value, bool) else str(value))
    except ValueError:
        raise ValueError(WEIGHT_ALLOWED) from None
    if not WEIGHT_MIN <= number <= WEIGHT_MAX:
        raise ValueError(WEIGHT_ALLOWED)
    return number


def priority(value: object) -> PriorityClass:
    if not isinstance(value, str) or value not in CLASSES:
        raise ValueError(", ".join(CLASSES))
    return PriorityClass(value)


def order(value: object) -> Order:
    match value:
        case "fifo":
            return "fifo"
        case "deadline":
            return "deadline"
        case "shortest":
            return "shortest"
        case _:
            raise ValueError("fifo, deadline or shortest")


def mode(value: object) -> Mode:
    """YAML 1.1 reads a bare `off` as false."""
    match value:
        case "enforce":
            return "enforce"
        case "observe":
            return "observe"
        case "off" | False:
            return "off"
        case _:
            raise ValueError("enforce, observe or off")


def limit_share(value: object) -> float:
    """The bound of a tenant as a part of the pool's KV cache."""
    number = units.share_whole(value)
    if not number:
        raise ValueError(LIMIT_ALLOWED)
    return number


def limit(value: object) -> tuple[float, int | None]:
    """The bound of a tenant: its share, and its KV tokens if it was written so (the share is then 1)."""
    number, _, unit = value.strip().rpartition(" ") if isinstance(value, str) else ("", "", "")
    try:
        return (1.0, count_1(number)) if unit == "tokens" else (limit_share(value), None)
    except ValueError:
        raise ValueError(LIMIT_ALLOWED) from None


def count_or_none(value: object) -> int | None:
    """A number, or `none` for no bound at all."""
    if value == "none":
        return None
    try:
        return count_1(value)
    except ValueError:
        raise ValueError("a whole number from 1, or none") from None


def switch(value: object) -> bool:
    """YAML 1.1 reads a bare on or off as true or false."""
    known: dict[object, bool] = {True: True, "on": True, False: False, "off": False}
    if not isinstance(value, str | bool) or value not in known:
        raise ValueError("on or off")
    return known[value]


def tenant_name(value: object) -> str:
    """The name of a tenant: it stands in metrics, logs, URLs and headers."""
    if not isinstance(value, str) or not _TENANT.fullmatch(value):
        raise ValueError(TENANT_ALLOWED)
    if value == REJECT:
        raise ValueError(f"a name other than `{REJECT}`, which `unknown_tenant` takes for none")
    if value in RESERVED:
        raise ValueError(RESERVED_ALLOWED)
    return value


def unknown_tenant(value: object) -> str:
    if not isinstance(value, str) or not (value == REJECT or _TENANT.fullmatch(value)):
        raise ValueError("reject, or the name of a tenant")
    return value
