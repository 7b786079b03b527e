"""What two places of a policy file contradict each other about: names that are there twice, or lead nowhere.

Pure. Each line says the path, what is there, and what is allowed. Keys are compared by what the file says of them;
`keyring.keys_of` compares the keys themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvgate.config.given import wrong
from kvgate.config.patterns import matches
from kvgate.config.tenant_choices import REJECT

if TYPE_CHECKING:
    from kvgate.config.policy import Policy
    from kvgate.config.policy_identity import KeySection


def contradictions(policy: Policy, source: str) -> list[str]:
    """A line for each; none for a policy whose parts fit together."""
    of_pools = (_names_twice, _backends_twice, _pools_nowhere)
    of_tenants = (_without_tenants, _unknown, _unreachable, _keys_twice)
    return [f"{source}: {line}" for check in (*of_pools, *of_tenants) for line in check(policy)]


def _names_twice(policy: Policy) -> Iterator[str]:
    """A model name must lead to one pool."""
    owner = dict.fromkeys(policy.pools, "the name of a pool")
    for name, pool in policy.pools.items():
        for alias in pool.aliases:
            if alias in owner:
                at = f"pools.{name}.aliases"
                yield wrong(at, alias, f"each name for one pool; this is {owner[alias]}")
            owner.setdefault(alias, f"an alias of {name}")


def _backends_twice(policy: Policy) -> Iterator[str]:
    owner: dict[str, str] = {}
    for name, pool in policy.pools.items():
        for url in pool.backends:
            if url in owner:
                at = f"pools.{name}.backends"
                allowed = f"each URL in one pool; it is in {owner[url]} as well, and its memory would be counted twice"
                yield wrong(at, url, allowed)
            owner.setdefault(url, name)


def _pools_nowhere(policy: Policy) -> Iterator[str]:
    for tenant, section in (policy.tenants or {}).items():
        for pattern in section.pools:
            if not any(matches(pattern, pool) for pool in policy.pools):
                at = f"tenants.{tenant}.pools"
                yield wrong(at, pattern, f"a pool or a pattern that means one: {', '.join(policy.pools)}")


def _without_tenants(policy: Policy) -> Iterator[str]:
    if policy.tenants is None:
        for key in ("unknown_tenant", "identity"):
            if key in policy.model_fields_set:
                yield f"{key}: needs tenants; without them every request belongs to one tenant"


def _unknown(policy: Policy) -> Iterator[str]:
    name = policy.unknown_tenant
    if policy.tenants is not None and name not in {None, REJECT, *policy.tenants}:
        yield wrong("unknown_tenant", name, f"{REJECT}, or one of {', '.join(policy.tenants)}")


def _unreachable(policy: Policy) -> Iterator[str]:
    """A tenant to whom no request could belong, and a key that nobody would ask for."""
    by_key = policy.identity is None or policy.identity.source == "api_key"
    for name, tenant in (policy.tenants or {}).items():
        if not by_key and tenant.keys:
            yield f"tenants.{name}.keys: nobody asks for them; allowed: keys with identity: {{from: api_key}}"
        if by_key and not tenant.keys and name != policy.unknown_tenant:
            allowed = f"a key, or unknown_tenant: {name}"
            yield f"tenants.{name}.keys: is missing: no request could belong to it; allowed: {allowed}"


def _keys_twice(policy: Policy) -> Iterator[str]:
    owner: dict[KeySection, str] = {}
    for name, tenant in (policy.tenants or {}).items():
        for index, key in enumerate(tenant.keys):
            at = f"tenants.{name}.keys.{index}"
            if key in owner:
                yield f"{at}: is the key of {owner[key]} too; allowed: each key once"
            owner.setdefault(key, at)
