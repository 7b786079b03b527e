"""The tenants, who they are and what holds for each in each pool: a value that is swapped whole when it changes.

Pure and frozen. What a request needs is worked out once for a tenant and pool and kept beside the book, since it is
asked for by every request; the names are those of the configuration, so there are boundedly many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from kvgate.config.identity import IdentityRules, KeyRef, key_digest
from kvgate.config.layers import Effective, Layer, Value, Written, effective, layer_of
from kvgate.config.overrides import Override
from kvgate_policies.types import TenantPolicy, TenantRules

__all__ = ["IdentityRules", "KeyRef", "Override", "TenantBook", "anonymous_book", "key_digest"]


@dataclass(frozen=True, slots=True)
class TenantBook:
    """All tenants, and what holds for them."""

    identity: IdentityRules
    keys: Mapping[bytes, str] = field(repr=False)
    """SHA-256 digest of a key → name of the tenant."""
    names: tuple[str, ...]
    """All tenants, in the order of the file; `("anonymous",)` where it has none."""
    defaults: Layer = field(default_factory=dict[str, Value], repr=False)
    """What holds for each of them unless its own section says otherwise."""
    tenants: Mapping[str, Written] = field(default_factory=dict[str, Written], repr=False)
    pools: Mapping[str, Layer] = field(default_factory=dict[str, Layer], repr=False)
    """What a pool says of all its tenants, by its name: before `defaults`."""
    overrides: Mapping[str, Override] = field(default_factory=dict[str, Override])
    """Changes at run time in all pools, by tenant."""
    pool_overrides: Mapping[str, Mapping[str, Override]] = field(
        default_factory=dict[str, Mapping[str, Override]]
    )
    """Changes at run time in one pool, by pool and tenant; they come before those in all pools."""
    _memo: dict[tuple[str, str], Effective] = field(
        default_factory=dict[tuple[str, str], Effective], init=False, compare=False, repr=False
    )
    _forecasts: dict[str, bool] = field(
        default_factory=dict[str, bool], init=False, compare=False, repr=False
    )

    def policy(self, tenant: str, pool: str) -> TenantPolicy:
        """What holds for a tenant in a pool. Raises KeyError for a tenant that is not in the book."""
        return self._effective(tenant, pool).policy

    def rules(self, pool: str) -> Mapping[str, TenantRules]:
        """What the ledger of a pool must know of each tenant."""
        return {name: self.policy(name, pool).rules for name in self.names}

    def origins(self, tenant: str, pool: str) -> Mapping[str, str]:
        """Field of `TenantPolicy` or `TenantRules` → where its value comes from. Raises KeyError."""
        return self._effective(tenant, pool).origins

    def levels(self, tenant: str, pool: str) -> Mapping[str, int]:
        """The same fields → how special the place is: a larger number was written over a smaller. Raises KeyError."""
        return self._effective(tenant, pool).levels

    def forecasts(self, pool: str) -> bool:
        """Whether any tenant reserves by forecast in a pool: without one, nobody's `risk` has an effect there."""
        if pool not in self._forecasts:
            policies = (self.policy(name, pool) for name in self.names)
            self._forecasts[pool] = any(policy.reservation == "forecast" for policy in policies)
        return self._forecasts[pool]

    def with_overrides(
        self,
        overrides: Mapping[str, Override],
        pool_overrides: Mapping[str, Mapping[str, Override]] | None = None,
    ) -> Self:
        """The book with these changes at run time and no others; those of unknown tenants are left out.

        A tenant may have left the file since its change was made, so that is no error. Whether a change makes
        sense beside everything else is the question of `crosschecks.problems`.
        """
        in_pools = {pool: self._known(of_pool) for pool, of_pool in (pool_overrides or {}).items()}
        book = replace(self, overrides=self._known(overrides), pool_overrides=in_pools)
        touched = self._overridden() | book._overridden()  # noqa: SLF001  the same class
        known = {key: one for key, one in self._memo.items() if key[0] not in touched}
        book._memo.update(known)  # noqa: SLF001
        return book

    def _overridden(self) -> set[str]:
        return {*self.overrides, *(name for of_pool in self.pool_overrides.values() for name in of_pool)}

    def _known(self, overrides: Mapping[str, Override]) -> dict[str, Override]:
        return {name: override for name, override in overrides.items() if name in self.names}

    def _effective(self, tenant: str, pool: str) -> Effective:
        known = self._memo.get((tenant, pool))
        if known is None:
            known = self._memo[tenant, pool] = effective(tenant, self._layers(tenant, pool))
        return known

    def _layers(self, tenant: str, pool: str) -> tuple[Layer, ...]:
        if tenant not in self.tenants and tenant not in self.names:  # the second takes long, with many names
            raise KeyError(tenant)
        written = self.tenants.get(tenant, Written())
        override = self.overrides.get(tenant, Override())
        in_pool = self.pool_overrides.get(pool, {}).get(tenant, Override())
        layers = (self.pools.get(pool, {}), self.defaults, written.values, written.of_pool(pool))
        return *layers, override.layer(), in_pool.layer()


def anonymous_book(
    tenant: TenantPolicy, defaults: Layer | None = None, pools: Mapping[str, Layer] | None = None
) -> TenantBook:
    """The book of a process without tenants: one, to whom every request belongs."""
    layer = layer_of(tenant) if defaults is None else defaults
    return TenantBook(IdentityRules(), {}, (tenant.name,), layer, pools=pools or {})
