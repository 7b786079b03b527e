"""What is replayed against: a policy, and the engines it stands before.

A policy file says what holds for tenants, and perhaps what its engines are like. What it leaves open, and what an
option says otherwise, comes from `Hardware`; the answer tells which engines were taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from kvgate.config import Settings
from kvgate.config.sources import load_elsewhere
from kvgate.config.tenants import TenantBook
from kvgate.errors import ConfigError
from kvgate.replay.engine_base import EngineSizes, accepts_sizes
from kvgate.replay.exact import make_model
from kvgate.sim.profiles import find_profile
from kvgate_policies.types import EngineLimits, EngineShape, Mode, TenantPolicy

DIRECT, DEFAULT, GUARANTEED = "direct", "default", "guaranteed"
"""Policies without a file: no admission control at all, kvgate as it is without a policy file, and the same with the
peaks of requests reserved."""
BUILT_IN = (DIRECT, DEFAULT, GUARANTEED)
ENGINES_MAX = 256
"""A pool of more is no pool any more."""
BLOCKS_MAX, BLOCK_SIZE_MAX = 4_000_000, 65_536
"""Of one engine, whose blocks are in memory one by one; and the tokens of a block, which hybrid models make large."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The engines as options give them; None: as the policy file says, or else as in `ASSUMED`."""

    engines: int | None = None
    num_gpu_blocks: int | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    profile: str | None = None


ASSUMED: Mapping[str, int | str] = {
    "engines": 4,
    "num_gpu_blocks": 27_000,
    "block_size": 16,
    "max_model_len": 32_768,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "profile": "8b-80gb",
}
"""An 8-billion-parameter model with grouped attention (128 KiB a token) on an 80 GB card: 53 GiB of cache."""


Written = Mapping[str, int]
"""What a policy says of its engines, by field of `Hardware`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One policy, ready to be replayed."""

    name: str
    settings: Settings
    """Of its one pool."""
    book: TenantBook
    engines: int
    sizes: EngineSizes
    assumed: tuple[str, ...] = ()
    """What of the engines nobody said."""

    @property
    def pool(self) -> str:
        return self.settings.pool

    @property
    def reserves(self) -> bool:
        """Whether anyone's requests wait for room: otherwise sums of prices are held against nothing."""
        return any(self.book.policy(name, self.pool).mode == "enforce" for name in self.book.names)

    @property
    def not_replayed(self) -> tuple[str, ...]:
        """What of the policy makes no difference here, though it would over HTTP."""
        settings = self.settings
        policies = (self.book.policy(name, self.pool) for name in self.book.names)
        found = {
            "model_config (the engines are taken for full attention)": settings.kv_model is not None,
            "prefix_sharing (no prompt begins like another)": settings.prefix_sharing,
            "priority (engines are first come, first served)": settings.priority,
            "revocable (nothing is sent back to the queue)": any(policy.revocable for policy in policies),
        }
        return tuple(name for name, is_there in found.items() if is_there)

    @property
    def shape(self) -> EngineShape:
        """As pricing sees the engines. They find no prompt in a cache, so nothing is shared."""
        sizes = self.sizes
        drafts = self.settings.speculative_tokens
        return EngineShape(sizes.block_size, sizes.max_model_len, speculative_tokens=drafts)

    def limits(self) -> list[EngineLimits]:
        """As the ledger is told of the engines."""
        sizes, settings = self.sizes, self.settings
        usable = sizes.usable_blocks - int(sizes.watermark * sizes.num_gpu_blocks)
        return [
            EngineLimits(
                f"engine-{number}", self.shape, usable, sizes.max_num_seqs, settings.prefill_tokens_max
            )
            for number in range(self.engines)
        ]


def make_plans(policies: Sequence[str], hardware: Hardware, pool: str | None = None) -> list[Plan]:
    """Each of `policies` is a file, or one of `BUILT_IN`. Raises ConfigError.

    What neither an option nor a policy's own file says of the engines is as in the first file that does, so that all
    are compared on the same.
    """
    settings = [_settings(policy, pool) for policy in policies]
    written = [
        _written(one, of_file=policy not in BUILT_IN) for policy, one in zip(policies, settings, strict=True)
    ]
    plans = [
        _plan(policy, one, hardware, [own, *written])
        for policy, one, own in zip(policies, settings, written, strict=True)
    ]
    return _named_apart(plans)


def _plan(policy: str, settings: Settings, hardware: Hardware, written: Sequence[Written]) -> Plan:
    values, assumed = _values(hardware, written)
    sizes = EngineSizes(
        num_gpu_blocks=int(values["num_gpu_blocks"]),
        block_size=int(values["block_size"]),
        max_model_len=int(values["max_model_len"]),
        max_num_seqs=int(values["max_num_seqs"]),
        max_num_batched_tokens=int(values["max_num_batched_tokens"]),
        profile=find_profile(str(values["profile"])),
        watermark=settings.watermark,
    )
    _check(policy, sizes, int(values["engines"]))
    name = policy if policy in BUILT_IN else Path(policy).stem
    return Plan(name, settings, settings.book, int(values["engines"]), sizes, assumed)


def _named_apart(plans: list[Plan]) -> list[Plan]:
    """With a number behind those of one name, such as files of one name in several directories."""
    names = [plan.name for plan in plans]
    return [
        replace(plan, name=f"{plan.name} ({names[: at + 1].count(plan.name)})")
        if names.count(plan.name) > 1
        else plan
        for at, plan in enumerate(plans)
    ]


def _settings(policy: str, pool: str | None) -> Settings:
    if policy == DEFAULT:
        return Settings(backends=("http://engine",))
    if policy in BUILT_IN:  # that of direct is not looked at, and spares forecasts
        mode: Mode = "off" if policy == DIRECT else "enforce"
        return Settings(backends=("http://engine",), tenant=TenantPolicy(mode=mode), reservation="guaranteed")
    settings = load_elsewhere(Path(policy))
    specs = {spec.name: spec for spec in settings.pool_specs()}
    if pool is None and len(specs) > 1:
        raise ConfigError(f"{policy}: has several pools; choose one with --pool: {', '.join(specs)}")
    if pool is not None and pool not in specs:
        if len(specs) > 1:
            raise ConfigError(f"--pool: {pool!r} is not in {policy}; allowed: {', '.join(specs)}")
        pool = None  # the log's name for it
    return settings.for_pool(specs[pool] if pool is not None else next(iter(specs.values())))


def _written(settings: Settings, *, of_file: bool) -> Written:
    """What a policy says of its engines. `max_num_seqs` has a default of its own, which is nobody's word."""
    seqs_default = Settings.model_fields["max_num_seqs"].default
    said = {
        "engines": len(settings.backends) if of_file else None,
        "num_gpu_blocks": settings.num_gpu_blocks,
        "block_size": settings.block_size,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs if settings.max_num_seqs != seqs_default else None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _values(hardware: Hardware, written: Sequence[Written]) -> tuple[dict[str, int | str], tuple[str, ...]]:
    """Each value, from the first place that has it, and the names of those that nobody said."""
    options = {one.name: getattr(hardware, one.name) for one in fields(Hardware)}
    places = [{name: value for name, value in options.items() if value is not None}, *written]
    values = {
        name: next((place[name] for place in places if name in place), ASSUMED[name]) for name in options
    }
    return values, tuple(name for name in options if not any(name in place for place in places))


def _check(policy: str, sizes: EngineSizes, engines: int) -> None:
    """Raises ConfigError for engines that can't be."""
    if not 1 <= engines <= ENGINES_MAX:
        raise ConfigError(f"--engines: {engines} is not allowed; allowed: 1 to {ENGINES_MAX}")
    for option, value, most in (
        ("--num-gpu-blocks", sizes.num_gpu_blocks, BLOCKS_MAX),
        ("--block-size", sizes.block_size, BLOCK_SIZE_MAX),
    ):
        if value > most:
            raise ConfigError(f"{option}: {value} is not allowed; allowed: at most {most:,}")
    if not accepts_sizes(sizes):
        raise ConfigError(
            f"--max-num-batched-tokens: {sizes.max_num_batched_tokens} is not allowed; allowed: more than "
            f"--max-num-seqs, {sizes.max_num_seqs}"
        )
    try:
        make_model(sizes)
    except ValueError as error:
        raise ConfigError(f"the engines of {policy}: {error}") from error
