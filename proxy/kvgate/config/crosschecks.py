"""What only several limits together can be wrong about: a request that could never pass, more given away than is there.

Pure, over the effective values of each tenant in each pool, so that it holds for a file and for a change at run time
alike. A refusal names the place that was written last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kvgate.config.layers import BUILT_IN
from kvgate_policies.types import TenantPolicy

if TYPE_CHECKING:
    from kvgate.config.settings import PoolSpec
    from kvgate.config.tenants import TenantBook

ANONYMOUS = TenantPolicy().name
SHARE_SLACK = 1e-9
"""Shares are read from decimals: ten times 10 % must be all of it."""


def problems(book: TenantBook, specs: Sequence[PoolSpec]) -> tuple[str, ...]:
    """A line for each contradiction: where, what is there, what is allowed. () if all is well."""
    return tuple(dict.fromkeys(_problems(book, specs)))


def _problems(book: TenantBook, specs: Iterable[PoolSpec]) -> Iterator[str]:
    for spec in specs:
        for name in book.names:
            yield from _of_tenant(book, name, spec)
        yield from _guarantees(book, spec)


def _of_tenant(book: TenantBook, name: str, spec: PoolSpec) -> Iterator[str]:
    policy, origins = book.policy(name, spec.name), book.origins(name, spec.name)
    rules = policy.rules
    if not rules.borrow and not rules.guarantee:
        yield _refused(
            origins["borrow"], "off", "off with a guarantee above 0%: it is all that the tenant has"
        )
    if rules.borrow and rules.guarantee > rules.limit:
        at, allowed = origins["guarantee"], f"at most the limit of {percent(rules.limit)}"
        yield _refused(_first_written(at, origins["limit"]), percent(rules.guarantee), allowed)
    levels = book.levels(name, spec.name)
    if levels["max_tokens_default"] >= max(levels["max_tokens_cap"], 1):
        yield from _default_above_cap(policy, origins["max_tokens_default"])
    yield from _never_passes(policy, spec, _first_written(origins["limit"], origins["guarantee"]))


def _default_above_cap(policy: TenantPolicy, origin: str) -> Iterator[str]:
    """Whoever wrote it meant more than holds. A default for all is lowered by one tenant's cap, which is no mistake."""
    default, cap = policy.max_tokens_default, policy.max_tokens_cap
    if default is not None and cap is not None and default > cap:
        yield _refused(origin, f"{default}{_whose(policy)}", f"at most the cap, {cap}")


def _never_passes(policy: TenantPolicy, spec: PoolSpec, origin: str) -> Iterator[str]:
    """One request with the largest output it may have must be within the limit, as far as both are known. By forecast
    it is, as long as what it is expected to hold is.
    """
    if policy.reservation == "forecast":
        return
    output, bound = largest_output(policy, spec), limit_in_tokens(policy, spec)
    if output is not None and bound is not None and bound < output:
        shown = f"a limit of {bound} tokens{_whose(policy)}"
        allowed = f"{output} tokens or more, one request of max_tokens {output}, which else could never pass"
        yield _refused(origin, shown, allowed)


def _guarantees(book: TenantBook, spec: PoolSpec) -> Iterator[str]:
    shares = {name: book.policy(name, spec.name).rules.guarantee for name in book.names}
    total = math.fsum(shares.values())
    if total > 1 + SHARE_SLACK:
        largest = max(shares, key=lambda name: shares[name])
        origin = book.origins(largest, spec.name)["guarantee"]
        shown = f"{percent(total)} guaranteed in pool {spec.name} ({_listed(shares)})"
        yield _refused(origin, shown, "100% for all tenants together")


def largest_output(policy: TenantPolicy, spec: PoolSpec) -> int | None:
    """Tokens of the longest answer that a tenant may ask for, where it is known; a bound that is not enforced is
    none. Without a cap it is what is reserved for a request that sets no limit.
    """
    if not policy.rewrite_max_tokens:
        return None
    cap = policy.max_tokens_cap if policy.max_tokens_cap is not None else policy.max_tokens_default
    known = [bound for bound in (cap, spec.max_model_len) if bound is not None]
    return min(known) if cap is not None else None


def limit_in_tokens(policy: TenantPolicy, spec: PoolSpec) -> int | None:
    """KV tokens that a tenant may hold in a pool, where it is known; None where only a share is."""
    rules = policy.rules
    share = rules.limit if rules.borrow else min(rules.limit, rules.guarantee)
    bounds = [rules.limit_tokens] if rules.limit_tokens is not None else []
    if share < 1 and spec.num_gpu_blocks is not None and spec.block_size is not None:
        usable = spec.num_gpu_blocks - 1 - math.floor(spec.watermark * spec.num_gpu_blocks)
        bounds.append(math.floor(share * usable * len(spec.backends)) * spec.block_size)
    return min(bounds, default=None)


def percent(share: float) -> str:
    """`30%` of 0.3."""
    return f"{round(share * 100, 6):g}%"


def _listed(shares: dict[str, float]) -> str:
    """Whose they are, the largest first, a few of them."""
    named = sorted(((share, name) for name, share in shares.items() if share), key=lambda one: -one[0])
    shown = ", ".join(f"{name} {percent(share)}" for share, name in named[:5])
    return shown if len(named) <= 5 else f"{shown} and {len(named) - 5} more"


def _whose(policy: TenantPolicy) -> str:
    return f" for tenant {policy.name}" if policy.name != ANONYMOUS else ""


def _first_written(*origins: str) -> str:
    """The first place that somebody wrote."""
    return next((origin for origin in origins if origin != BUILT_IN), BUILT_IN)


def _refused(origin: str, shown: str, allowed: str) -> str:
    return f"{origin}: {shown} is not allowed; allowed: {allowed}"
