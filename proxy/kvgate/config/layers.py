"""What was written about tenants, in layers, and what comes of it.

Pure. A later layer replaces a value of an earlier one: built-in defaults, what the pool says of all its tenants,
`defaults`, the tenant's section, its section for the pool, a change at run time. Each value keeps the place it was
written in to the end, so that it can be said why a number is what it is.

One value depends on another: with forecasts the length of an answer is learned, and nothing is written into requests
without a limit unless somebody wrote a default. Where peaks are reserved there is one in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from kvgate.config.patterns import best
from kvgate_policies.types import MAX_TOKENS_DEFAULT, TenantPolicy, TenantRules

BUILT_IN = "default"
"""The origin of a value that nobody wrote."""


@dataclass(frozen=True, slots=True)
class Value:
    value: object
    origin: str
    """`FILE: path.in.the.file`, an option, a variable, or `default`."""


Layer = Mapping[str, Value]
"""Values by their field in `TenantPolicy` or `TenantRules`."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written for one tenant."""

    values: Layer = field(default_factory=dict[str, Value])
    pools: Mapping[str, Layer] = field(default_factory=dict[str, Layer])
    """By name of a pool, or pattern of names, in the order of the file."""

    def of_pool(self, pool: str) -> Layer:
        """What was written for one pool: by its name, or else by the first pattern that matches."""
        key = best(pool, self.pools)
        return self.pools[key] if key is not None else {}


@dataclass(frozen=True, slots=True)
class Effective:
    policy: TenantPolicy
    origins: Mapping[str, str]
    """Field → where its value comes from."""
    levels: Mapping[str, int]
    """Field → how special the layer of its value is; 0 for a built-in one."""


RULES = tuple(one.name for one in fields(TenantRules))
LIMITS = tuple(one.name for one in fields(TenantPolicy) if one.name not in {"name", "rules"})
FIELDS = (*LIMITS, *RULES)
"""Everything that can be said of a tenant; the names of the two dataclasses do not overlap."""
OF_POOLS = ("reservation", "risk")
"""What a pool may say of all its tenants; settings of the same names."""
DEFAULT_OUTPUT = "max_tokens_default"
POOL_DEFAULT = "default"
"""The name of a pool that nobody named."""


def layer_of(policy: TenantPolicy, origin: str = "settings") -> Layer:
    """The values of a policy that are not the built-in ones."""
    plain, rules = TenantPolicy(), TenantRules()
    given = {name: getattr(policy, name) for name in LIMITS if getattr(policy, name) != getattr(plain, name)}
    given |= {
        name: getattr(policy.rules, name)
        for name in RULES
        if getattr(policy.rules, name) != getattr(rules, name)
    }
    return {name: Value(value, origin) for name, value in given.items()}


def effective(tenant: str, layers: Iterable[Layer]) -> Effective:
    """What holds in the end, and where each value comes from."""
    merged: dict[str, Value] = {}
    levels = dict.fromkeys(FIELDS, 0)
    for level, layer in enumerate(layers, start=1):
        merged |= layer
        levels |= dict.fromkeys(layer, level)
    rules = TenantRules(**_named(merged, RULES))
    policy = TenantPolicy(name=tenant, rules=rules, **_named(merged, LIMITS))
    if policy.reservation == "guaranteed" and DEFAULT_OUTPUT not in merged:
        policy = replace(policy, max_tokens_default=MAX_TOKENS_DEFAULT)
    origins = {name: merged[name].origin if name in merged else BUILT_IN for name in FIELDS}
    return Effective(policy, origins, levels)


def _named(merged: Layer, names: Iterable[str]) -> dict[str, Any]:
    return {name: merged[name].value for name in names if name in merged}
