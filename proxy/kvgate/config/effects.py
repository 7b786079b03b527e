"""What a policy file sets, and where: settings, pools, tenants. Every value keeps its place in the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from kvgate.config.given import Given
from kvgate.config.identity import JWT_ALGORITHMS_DEFAULT, IdentityRules
from kvgate.config.layers import OF_POOLS, POOL_DEFAULT, Layer, Value, Written
from kvgate.config.tenant_choices import REJECT
from kvgate.config.tenants import TenantBook

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel

    from kvgate.config.policy import Limits, Policy, Pool

TENANT = "tenant."
"""Settings of this prefix are what holds for every tenant."""

POOL_KEYS: Mapping[str, str] = {
    "aliases": "aliases",
    "backends": "backends",
    "prompt_tokens": "prompt_tokens",
    "reservation": "reservation",
    "risk": "risk",
    "max_num_seqs": "max_num_seqs",
    "num_gpu_blocks": "num_gpu_blocks",
    "block_size": "block_size",
    "max_model_len": "max_model_len",
    "prefix_affinity": "prefix_affinity",
    "prefix_sharing": "prefix_sharing",
    "priority": "priority",
    "speculative_tokens": "speculative_tokens",
    "watermark": "watermark",
    "prefill_tokens_max": "prefill_tokens",
}
"""Setting of a pool → its key in the pool's section."""

LIMIT_KEYS: Mapping[str, tuple[str, ...]] = {
    "weight": ("weight",),
    "priority": ("class_",),
    "guarantee": ("guarantee",),
    "borrow": ("borrow",),
    "queue_depth_max": ("queue", "depth"),
    "queue_wait_s_max": ("queue", "wait"),
    "order": ("queue", "order"),
    "max_tokens_default": ("max_tokens", "default"),
    "max_tokens_cap": ("max_tokens", "cap"),
    "rewrite_max_tokens": ("max_tokens", "rewrite"),
    "tokens_per_minute": ("rate", "tokens_per_minute"),
    "requests_per_minute": ("rate", "requests_per_minute"),
    "reservation": ("reservation",),
    "risk": ("risk",),
    "revocable": ("revocable",),
    "overload_status": ("on_overload",),
    "mode": ("mode",),
}
"""Field of `TenantPolicy` or `TenantRules` → its path in a tenant's section."""


def process_settings(policy: Policy, source: str) -> dict[str, Given]:
    """What holds for the process and for every tenant, by path in `Settings`. Secrets are not among them."""
    rows: tuple[tuple[str, str, object], ...] = (
        ("ledger_url", "ledger.url", policy.ledger.url),
        ("ledger_lease_s", "ledger.lease", policy.ledger.lease),
        ("ledger_on_failure", "ledger.on_failure", policy.ledger.on_failure),
        ("bypass_max", "bypass", policy.bypass),
    )
    given = {
        target: Given(target, value, f"{source}: {path}") for target, path, value in rows if value is not None
    }
    layer = layer_of(policy.defaults, f"{source}: defaults")
    if policy.mode is not None:
        layer = {**layer, "mode": Value(policy.mode, f"{source}: mode")}
    return given | {TENANT + n: Given(TENANT + n, v.value, v.origin) for n, v in layer.items()}


def pool_settings(name: str, pool: Pool, source: str) -> dict[str, Given]:
    """What the section of one pool sets, by the field in `Settings`. Its secret is not among them."""
    given = {"pool": Given("pool", name, f"{source}: pools")}
    for target, key in POOL_KEYS.items():
        if key in pool.model_fields_set:
            given[target] = Given(target, getattr(pool, key), f"{source}: pools.{name}.{key}")
    return given


def layer_of(section: Limits, at: str) -> Layer:
    """What a tenant's section says, by field."""
    layer: dict[str, Value] = {}
    for name, path in LIMIT_KEYS.items():
        for value in _written(section, path):
            layer[name] = Value(value, ".".join((at, *path)).removesuffix("_"))
    if section.limit is not None:  # one key, two fields: whichever was written replaces both
        share, tokens = section.limit
        layer |= {"limit": Value(share, f"{at}.limit"), "limit_tokens": Value(tokens, f"{at}.limit")}
    return layer


def _written(section: BaseModel, path: tuple[str, ...]) -> Iterator[object]:
    """The value at a path, if somebody wrote it: an unset limit and one that is `none` differ."""
    name, *rest = path
    if name in section.model_fields_set:
        value = getattr(section, name)
        yield from _written(value, tuple(rest)) if rest else (value,)


def defaults_of(given: Mapping[str, Given]) -> Layer:
    """What holds for every tenant, of all that was given."""
    return {
        target.removeprefix(TENANT): Value(one.value, one.origin)
        for target, one in given.items()
        if target.startswith(TENANT)
    }


def layers_of_pools(pools: Iterable[Mapping[str, Given]]) -> dict[str, Layer]:
    """What each pool says of all its tenants, by its name; a pool is all that was given for it."""
    layers: dict[str, Layer] = {}
    for given in pools:
        name = str(given["pool"].value) if "pool" in given else POOL_DEFAULT
        layers[name] = {key: Value(given[key].value, given[key].origin) for key in OF_POOLS if key in given}
    return {name: layer for name, layer in layers.items() if layer}


def book_of(
    policy: Policy,
    source: Path,
    keys: Mapping[bytes, str],
    defaults: Layer,
    pools: Mapping[str, Layer],
) -> TenantBook | None:
    """The tenants of a policy file; None where it has none."""
    if policy.tenants is None:
        return None
    written: dict[str, Written] = {}
    for name, tenant in policy.tenants.items():
        at = f"{source}: tenants.{name}"
        in_pools = {pool: layer_of(section, f"{at}.pools.{pool}") for pool, section in tenant.pools.items()}
        written[name] = Written(layer_of(tenant, at), in_pools)
    return TenantBook(identity_of(policy, source), keys, tuple(written), defaults, written, pools)


def identity_of(policy: Policy, source: Path) -> IdentityRules:
    """How tenants are found: by their keys unless the file says otherwise."""
    unknown = None if policy.unknown_tenant == REJECT else policy.unknown_tenant
    said = policy.identity
    if said is None:
        return IdentityRules("api_key", unknown=unknown)
    return IdentityRules(
        source=said.source,
        header=said.name or "",
        trusted_proxies=said.trusted_proxies or (),
        jwt_claim=said.claim or "",
        jwt_issuer=said.issuer,
        jwt_audience=said.audience,
        jwks_file=source.parent / said.jwks_file if said.jwks_file else None,
        jwks_url=said.jwks_url,
        jwt_algorithms=said.algorithms or JWT_ALGORITHMS_DEFAULT,
        unknown=unknown,
    )
