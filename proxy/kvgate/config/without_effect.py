"""Settings that change nothing where they stand: whoever wrote them meant something. Pure.

A value is doubted only if it is of use to no tenant in no pool: one in `defaults` may be for some tenants alone. The
`risk` of a guaranteed tenant may be of use, too: beside forecasts its requests start by that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvgate.config.layers import BUILT_IN
from kvgate.config.options import ENV_PREFIX
from kvgate.config.patterns import best
from kvgate_policies.types import PriorityClass, TenantPolicy

if TYPE_CHECKING:
    from kvgate.config.settings import Settings
    from kvgate.config.tenants import TenantBook


@dataclass(frozen=True, slots=True)
class _Beside:
    """What else is in the pool."""

    forecasts: bool
    others: bool
    """Other tenants."""


@dataclass(frozen=True, slots=True)
class _Doubt:
    field: str
    idle: Callable[[TenantPolicy, _Beside], bool]
    """Whether the value does nothing for a tenant."""
    said: str


def _unwritten(value: int | None, policy: TenantPolicy) -> bool:
    return value is not None and not policy.rewrite_max_tokens


def _above_partition(policy: TenantPolicy) -> bool:
    rules = policy.rules
    return not rules.borrow and rules.limit_tokens is None and rules.guarantee <= rules.limit < 1


_DOUBTS = (
    _Doubt(
        "risk",
        lambda _, beside: not beside.forecasts,
        "the risk has no effect, since all tenants there reserve peaks; leave it out, or write reservation: "
        "forecast",
    ),
    _Doubt(
        "revocable",
        lambda policy, _: policy.revocable and policy.priority is not PriorityClass.BATCH,
        "revocable is for requests of class batch, and here only those are that ask for it by x-kvgate-class; "
        "write class: batch, or leave revocable out",
    ),
    _Doubt(
        "revocable",
        lambda policy, _: policy.revocable and policy.reservation == "guaranteed",
        "revocable has no effect, since what reserves its peak is never sent back; leave it out, or write "
        "reservation: forecast",
    ),
    _Doubt(
        "max_tokens_default",
        lambda policy, _: _unwritten(policy.max_tokens_default, policy),
        "the default has no effect with rewrite: off, which writes no limit into any request; leave one of them "
        "out",
    ),
    _Doubt(
        "max_tokens_cap",
        lambda policy, _: _unwritten(policy.max_tokens_cap, policy),
        "the cap has no effect with rewrite: off, which lowers no limit of any request; leave one of them out",
    ),
    _Doubt(
        "limit",
        lambda policy, _: _above_partition(policy),
        "the limit has no effect with borrow: off, where nothing is above the guarantee; leave one of them out",
    ),
    _Doubt(
        "weight",
        lambda policy, beside: policy.rules.weight != 1 and not beside.others,
        "the weight has no effect without another tenant to share with; leave it out",
    ),
)


def without_effect(settings: Settings) -> Iterator[str]:
    """A sentence for each such value, with the place it was written in and what to do."""
    pools = tuple(spec.name for spec in settings.pool_specs())
    yield from _of_values(settings.book, pools)
    yield from _of_options(settings.book, pools)
    yield from _of_sections(settings.book, pools)
    yield from _of_sharing(settings)
    yield from _of_priority(settings)
    yield from _of_process(settings)


def _of_values(book: TenantBook, pools: Iterable[str]) -> Iterator[str]:
    idle: dict[tuple[str, str], bool] = {}
    for pool in pools:
        beside = _Beside(book.forecasts(pool), len(book.names) > 1)
        for name in book.names:
            policy, origins = book.policy(name, pool), book.origins(name, pool)
            for doubt in _DOUBTS:
                place = origins[doubt.field], doubt.said
                idle[place] = idle.get(place, True) and doubt.idle(policy, beside)
    yield from (f"{at}: {said}" for (at, said), nothing in idle.items() if nothing and _is_written(at))


def _of_options(book: TenantBook, pools: Iterable[str]) -> Iterator[str]:
    """Options and variables that the file overrules for everyone, tenant by tenant."""
    layers = (book.defaults, *book.pools.values())
    given = {(name, one.origin) for layer in layers for name, one in layer.items() if _is_option(one.origin)}
    if not given:
        return
    holds = {item for pool in pools for name in book.names for item in book.origins(name, pool).items()}
    for _, origin in sorted(given - holds):
        yield f"{origin}: has no effect, since the policy file says otherwise for every tenant; change it there"


def _of_sections(book: TenantBook, pools: tuple[str, ...]) -> Iterator[str]:
    """Sections of a tenant that are for no pool, because others come before them in each that they mean."""
    for name, written in book.tenants.items():
        used = {best(pool, written.pools) for pool in pools}
        for pattern in written.pools:
            if pattern not in used:
                yield (
                    f"tenants.{name}.pools.{pattern} holds in no pool, since an exact name comes before a pattern "
                    "and the first pattern before the next; put it first, or leave it out"
                )


def _of_sharing(settings: Settings) -> Iterator[str]:
    """Prompts that are sent as token ids are shared in any case, but few are."""
    for spec in settings.pool_specs():
        if spec.prefix_sharing and spec.prompt_tokens == "learned":
            yield (
                f"pool {spec.name}: prefix_sharing has no effect on chats and texts, whose token ids are not known "
                "with prompt_tokens: learned; let that be backend or local:DIR, or leave prefix_sharing out"
            )


def _of_priority(settings: Settings) -> Iterator[str]:
    """All are told the same number. What clients ask for is overruled even so, which may be what was meant."""
    for spec in settings.pool_specs():
        kinds = {settings.book.policy(name, spec.name).reservation for name in settings.book.names}
        if spec.priority and len(kinds) == 1:
            yield (
                f"pool {spec.name}: priority prefers no tenant to another, since all there reserve alike "
                f"({kinds.pop()}); it only overrules the priorities that clients ask for; leave it out, or let some "
                "tenants have another reservation"
            )


def _of_process(settings: Settings) -> Iterator[str]:
    fields = type(settings).model_fields
    if settings.otlp_endpoint is None and settings.trace_sample != fields["trace_sample"].default:
        yield "--trace-sample: has no effect without --otlp-endpoint, where traces are sent to"
    for name in ("request_log_bytes_max", "request_log_files_max"):
        if settings.request_log is None and getattr(settings, name) != fields[name].default:
            yield f"{ENV_PREFIX}{name.upper()}: has no effect without --request-log, the file it is about"


def _is_written(origin: str) -> bool:
    return origin not in {BUILT_IN, "settings"}


def _is_option(origin: str) -> bool:
    return origin.startswith(("--", ENV_PREFIX))
