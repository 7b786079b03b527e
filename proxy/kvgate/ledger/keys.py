"""Names in Redis: the keys of a pool, and the short form of an engine's shape.

All keys of a pool carry one hash tag, so that a cluster keeps them on one node, and there is a fixed set of
them, so that every script can declare all it touches. What each holds stands in `lua/README.md`.
"""

from __future__ import annotations

from kvgate_policies.kv_groups import KVGroup
from kvgate_policies.model_shape import Kind
from kvgate_policies.types import EngineShape

NAMES = (
    "meta",
    "leases",
    "processes",
    "engines",
    "slots",
    "holdings",
    "orphans",
    "tenants",
    "busy",
    "rules_a",
    "rules_b",
    "overrides",
    "flows",
    "queue",
    "parked",
    "waiters",
    "owners",
    "unseen",
    "ceilings",
    "grants",
)
"""The last part of each key, in the order in which the scripts take them as KEYS."""

_POOL_LENGTH_MAX = 200
"""Characters: every call sends the name once per key."""


def keys_of(pool: str) -> tuple[str, ...]:
    """The keys of a pool, in the order of `NAMES`. Raises ValueError for a name that would break the hash tag."""
    if not 0 < len(pool) <= _POOL_LENGTH_MAX or "{" in pool or "}" in pool or not pool.isprintable():
        raise ValueError(
            f"the name of a pool has 1 to {_POOL_LENGTH_MAX} printable characters and no braces: {pool!r}"
        )
    return tuple(f"kvgate:{{{pool}}}:{name}" for name in NAMES)


def stream_key(pool: str) -> str:
    """The stream of a pool that carries its grants and late refusals."""
    return keys_of(pool)[NAMES.index("grants")]


def shape_key(shape: EngineShape) -> str:
    """A shape as text: block size, context, prefix caching, speculative tokens, opaque blocks; and where there are KV
    groups, tokens in flight and a part for each: kind, block size, window, count, checkpoints.

    Two shapes are equal exactly when their keys are.
    """
    opaque = "-" if shape.blocks_opaque is None else str(shape.blocks_opaque)
    prefix = int(shape.prefix_caching)
    plain = f"{shape.block_size}/{shape.max_model_len}/{prefix}/{shape.speculative_tokens}/{opaque}"
    if not shape.groups and not shape.in_flight_tokens:
        return plain
    groups = (f"{g.kind.name}:{g.block_size}:{g.window}:{g.count}:{g.checkpoints}" for g in shape.groups)
    return "/".join((plain, str(shape.in_flight_tokens), *groups))


def shape_of(key: str) -> EngineShape:
    """The shape that has this key. Raises ValueError for text that `shape_key` does not write."""
    parts = key.split("/")
    if len(parts) < 5:
        raise ValueError(f"not the key of an engine's shape: {key!r}")
    block_size, max_model_len, prefix, speculative = (int(part) for part in parts[:4])
    opaque = None if parts[4] == "-" else int(parts[4])
    in_flight = int(parts[5]) if len(parts) > 5 else 0
    groups = tuple(_group_of(part) for part in parts[6:])
    return EngineShape(block_size, max_model_len, prefix == 1, speculative, opaque, groups, in_flight)


def _group_of(part: str) -> KVGroup:
    name, *numbers = part.split(":")
    if name not in Kind.__members__ or len(numbers) != 4:
        raise ValueError(f"not a KV group: {part!r}")
    block_size, window, count, checkpoints = (int(number) for number in numbers)
    return KVGroup(Kind[name], block_size, window, count, checkpoints)
