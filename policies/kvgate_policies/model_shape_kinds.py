"""Which decoder layer keeps what: from the many ways in which configurations say it.

The rules are tried in order and the first that applies counts: an explicit list of layer types, a pattern, a
period, a family's own default, one window for all, and at last full attention everywhere. The defaults by
`model_type` are those that the families' configuration classes fill in when the file leaves them out.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvgate_policies.model_shape_fields import Fields


class Does(Enum):
    """What a decoder layer has a cache for."""

    FULL = "full attention"
    SLIDING = "sliding window"
    CHUNKED = "chunked attention"
    STATE = "recurrent state"
    BOTH = "attention and a recurrent state"
    NOTHING = "nothing"


_TYPES = {
    "full_attention": Does.FULL,
    "attention": Does.FULL,
    "indexed_attention": Does.FULL,
    "sliding_attention": Does.SLIDING,
    "sliding_window": Does.SLIDING,
    "chunked_attention": Does.CHUNKED,
    "linear_attention": Does.STATE,
    "mamba": Does.STATE,
    "mamba2": Does.STATE,
    "conv": Does.STATE,
    "hybrid": Does.BOTH,
    "mlp": Does.NOTHING,
    "moe": Does.NOTHING,
}
_LETTERS = {"*": Does.FULL, "M": Does.STATE, "-": Does.NOTHING, "E": Does.NOTHING}
"""Nemotron-H writes a letter for each layer."""

_EVERY = {
    "cohere2": 4,
    "exaone4": 4,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3_text": 6,
    "gemma3n": 5,
    "gemma3n_text": 5,
    "gemma4": 6,
    "gemma4_text": 6,
    "gpt_oss": 2,
    "olmo3": 4,
}
"""Every n-th layer has full attention and the others a window, in families that need not say so."""
_INTERVAL = {"qwen3_next": 4, "qwen3_5": 4, "qwen3_5_text": 4, "qwen3_5_moe": 4, "qwen3_5_moe_text": 4}
"""The same for linear attention."""
_ALL_STATE = {"mamba", "mamba2", "falcon_mamba"}
_ALL_BOTH = {"falcon_h1"}
LAYERS_MAX = 4096
"""Of a decoder: the deepest have some 130."""


def layer_kinds(fields: Fields) -> tuple[Does, ...]:
    """What each decoder layer does. Raises ModelShapeError."""
    rule = next(found for rule in _RULES if (found := rule(fields)) is not None)
    kinds = _without_window(rule, fields)
    depth = fields.optional("num_hidden_layers", least=1)
    if depth is not None and depth != len(kinds) and not fields.has("hybrid_override_pattern"):
        name = fields.first("layers_block_type", "layer_types") or "num_hidden_layers"
        raise fields.error(name, f"has {len(kinds)} layers, num_hidden_layers is {depth}", "the same number")
    return kinds


def depth_of(fields: Fields) -> int:
    names = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
    depth = fields.count(*names)
    if depth > LAYERS_MAX:
        raise fields.error(fields.first(*names) or names[0], f"is {depth}", f"at most {LAYERS_MAX}")
    return depth


def _listed(fields: Fields) -> Sequence[Does] | None:
    name = fields.first("layers_block_type", "layer_types")
    if name is None:
        return None
    types = fields.texts(name)
    strange = next((place for place, one in enumerate(types) if one not in _TYPES), None)
    if strange is not None:
        raise fields.error(f"{name}[{strange}]", f"is {types[strange]!r}", ", ".join(_TYPES))
    return [_TYPES[one] for one in types]


def _pattern(fields: Fields) -> Sequence[Does] | None:
    pattern = fields.text("hybrid_override_pattern")
    if pattern is None:
        return None
    strange = next((place for place, letter in enumerate(pattern) if letter not in _LETTERS), None)
    if strange is not None or not pattern:
        found = f"has {pattern[strange]!r} at {strange}" if strange is not None else "is empty"
        raise fields.error("hybrid_override_pattern", found, ", ".join(_LETTERS))
    return [_LETTERS[letter] for letter in pattern]


def _period(fields: Fields) -> Sequence[Does] | None:
    """Jamba: one attention layer in each period."""
    if not fields.has("attn_layer_period"):
        return None
    period, offset = fields.count("attn_layer_period"), fields.optional("attn_layer_offset") or 0
    return [Does.FULL if i % period == offset else Does.STATE for i in range(depth_of(fields))]


def _indices(fields: Fields) -> Sequence[Does] | None:
    """LFM2 and Bamba: the attention layers by number."""
    name = fields.first("full_attn_idxs", "attn_layer_indices")
    if name is None:
        return None
    full = set(fields.numbers(name))
    return [Does.FULL if i in full else Does.STATE for i in range(depth_of(fields))]


def _linear_lists(fields: Fields) -> Sequence[Does] | None:
    """Kimi Linear: the layers by number, from 1."""
    linear = fields.inner("linear_attn_config")
    if linear is None:
        return None
    state = set(linear.numbers("kda_layers"))
    return [Does.STATE if i + 1 in state else Does.FULL for i in range(depth_of(fields))]


def _interval(fields: Fields) -> Sequence[Does] | None:
    model_type = fields.text("model_type") or ""
    if not fields.has("full_attention_interval") and model_type not in _INTERVAL:
        return None
    interval = fields.count("full_attention_interval", default=_INTERVAL.get(model_type))
    return [Does.STATE if (i + 1) % interval else Does.FULL for i in range(depth_of(fields))]


def _family(fields: Fields) -> Sequence[Does] | None:
    model_type = fields.text("model_type") or ""
    if model_type in _ALL_STATE:
        return [Does.STATE] * depth_of(fields)
    return [Does.BOTH] * depth_of(fields) if model_type in _ALL_BOTH else None


def _mixed_windows(fields: Fields) -> Sequence[Does] | None:
    """A window in all layers but every n-th."""
    name = fields.first("sliding_window_pattern", "_sliding_window_pattern")
    model_type = fields.text("model_type") or ""
    if name is None and model_type not in _EVERY:
        return None
    if name is not None and isinstance(fields.values[name], str):
        letters = fields.text(name) or "G"  # EXAONE writes "LLLG": local and global
        return [
            Does.FULL if letters[i % len(letters)] == "G" else Does.SLIDING for i in range(depth_of(fields))
        ]
    every = fields.count(name, default=_EVERY.get(model_type)) if name else _EVERY[model_type]
    return [Does.SLIDING if (i + 1) % every else Does.FULL for i in range(depth_of(fields))]


def _later_windows(fields: Fields) -> Sequence[Does] | None:
    """Qwen: a window only where it is switched on, and then from a layer on."""
    if not fields.has("use_sliding_window"):
        return None
    depth = depth_of(fields)
    if not fields.flag("use_sliding_window"):
        return [Does.FULL] * depth
    start = fields.optional("max_window_layers") or 0
    return [Does.SLIDING if i >= start else Does.FULL for i in range(depth)]


def _chunks(fields: Fields) -> Sequence[Does] | None:
    """Llama 4: chunked attention in the layers that have positions."""
    if not fields.has("attention_chunk_size"):
        return None
    depth = depth_of(fields)
    positions = fields.numbers("no_rope_layers") if fields.values.get("no_rope_layers") else None
    if positions is None:
        interval = fields.count("no_rope_layer_interval", default=4)
        positions = tuple((i + 1) % interval for i in range(depth))
    return [Does.CHUNKED if one else Does.FULL for one in positions]


def _one_for_all(fields: Fields) -> Sequence[Does]:
    windowed = bool(fields.optional("sliding_window"))
    return [Does.SLIDING if windowed else Does.FULL] * depth_of(fields)


_RULES: tuple[Callable[[Fields], Sequence[Does] | None], ...] = (
    _listed,
    _pattern,
    _period,
    _indices,
    _linear_lists,
    _interval,
    _family,
    _mixed_windows,
    _later_windows,
    _chunks,
    _one_for_all,
)


def _without_window(kinds: Sequence[Does], fields: Fields) -> tuple[Does, ...]:
    """A window that is absent, null, 0 or switched off means full attention."""
    off = fields.has("use_sliding_window") and not fields.flag("use_sliding_window")
    if off or not fields.optional("sliding_window", "sliding_window_size"):
        return tuple(Does.FULL if kind is Does.SLIDING else kind for kind in kinds)
    return tuple(kinds)
