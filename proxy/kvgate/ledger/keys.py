"""Names in Redis: the keys of a pool, and the short form of an engine's shape.

All keys of a pool carry one hash tag, so that a cluster keeps them on one node, and there is a fixed set of
them, so that every script can declare all it touches. What each holds stands in `lua/README.md`.
"""

from __future__ import annotations

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
    """A shape as text: block size, context, prefix caching, speculative tokens, opaque blocks.

    Two shapes are equal exactly when their keys are.
    """
    opaque = "-" if shape.blocks_opaque is None else str(shape.blocks_opaque)
    prefix = int(shape.prefix_caching)
    return f"{shape.block_size}/{shape.max_model_len}/{prefix}/{shape.speculative_tokens}/{opaque}"


def shape_of(key: str) -> EngineShape:
    """The shape that has this key. Raises ValueError for text that `shape_key` does not write."""
    parts = key.split("/")
    if len(parts) != 5:
        raise ValueError(f"not the key of an engine's shape: {key!r}")
    block_size, max_model_len, prefix, speculative = (int(part) for part in parts[:4])
    opaque = None if parts[4] == "-" else int(parts[4])
    return EngineShape(block_size, max_model_len, prefix == 1, speculative, opaque)
