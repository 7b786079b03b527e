"""The recurrent state of a layer, by the family whose fields are there.

Source: the `get_mamba_state_shape_from_config` of each model in vLLM 0.32, for the shapes; what is kept is the
last inputs of a convolution and one matrix for each head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgate_policies.model_shape import ModelShapeError, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvgate_policies.model_shape_fields import Fields


def state_of(fields: Fields) -> State:
    """The state of each recurrent layer. Raises ModelShapeError where no known family's fields are there."""
    for field, read in _FAMILIES:
        if fields.has(field):
            return read(fields)
    wanted = ", ".join(field for field, _ in _FAMILIES)
    raise ModelShapeError(
        f"{fields.path}layer types: some layers keep a recurrent state, and no field says of which size; "
        f"known are the families with one of: {wanted}"
    )


def _gated_delta_net(fields: Fields) -> State:
    """Qwen3-Next, Qwen3.5."""
    keys = fields.count("linear_num_key_heads") * fields.count("linear_key_head_dim")
    values, size = fields.count("linear_num_value_heads"), fields.count("linear_value_head_dim")
    return State(
        channels=2 * keys + values * size,
        taps=fields.count("linear_conv_kernel_dim") - 1,
        heads=values,
        head_elements=size * fields.count("linear_key_head_dim"),
        head_dtype=fields.text("mamba_ssm_dtype"),
        drafts_add_taps=True,
    )


def _delta_attention(fields: Fields) -> State:
    """Kimi Linear; its matrices are float32 whatever the model is."""
    linear = fields.inner("linear_attn_config") or fields
    heads, size = linear.count("num_heads"), linear.count("head_dim")
    return State(
        channels=3 * heads * size,
        taps=linear.count("short_conv_kernel_size", default=4) - 1,
        heads=heads,
        head_elements=size * size,
        head_dtype="float32",
        drafts_add_taps=True,
    )


def _mamba_2(
    heads: str, size: str, groups: str, state: str, kernel: str, *, own_dtype: str | None = None
) -> Callable[[Fields], State]:
    """Mamba 2, whose fields every family calls differently."""

    def read(fields: Fields) -> State:
        number, elements = fields.count(heads), fields.count(state)
        return State(
            channels=_inner_size(fields, number * fields.count(size)),
            taps=fields.count(kernel) - 1,
            heads=number,
            head_elements=fields.count(size) * elements,
            groups=fields.count(groups, default=1),
            group_channels=2 * elements,
            head_dtype=fields.text("mamba_ssm_cache_dtype") or own_dtype,
            drafts_add_taps=True,
        )

    return read


def _inner_size(fields: Fields, by_heads: int) -> int:
    """Channels of the inner layer: given, or an expansion of the hidden size, or heads × their size."""
    if given := fields.optional("mamba_d_ssm", least=1):
        return given
    expand = fields.first("mamba_expand")
    if expand is None or fields.has("mamba_num_heads"):
        return by_heads
    return fields.count(expand) * fields.count("hidden_size")


def _short_convolution(fields: Fields) -> State:
    """LFM2: a convolution and nothing else."""
    channels = fields.count("conv_dim", "hidden_size")
    return State(channels=channels, taps=fields.count("conv_L_cache") - 1)


def _mamba_1(fields: Fields) -> State:
    """Jamba."""
    inner = fields.count("mamba_expand", default=2) * fields.count("hidden_size")
    return _mamba_1_of(inner, fields.count("mamba_d_state"), fields.count("mamba_d_conv"))


def _pure_mamba(fields: Fields) -> State:
    """Models without attention: Mamba 1 and 2 by themselves."""
    size, kernel = fields.count("state_size"), fields.count("conv_kernel")
    if not fields.has("n_groups"):
        return _mamba_1_of(fields.count("intermediate_size"), size, kernel)
    return _mamba_2("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel")(fields)


def _mamba_1_of(inner: int, state: int, kernel: int) -> State:
    return State(channels=inner, taps=kernel - 1, heads=inner, head_elements=state)


_FAMILIES: tuple[tuple[str, Callable[[Fields], State]], ...] = (
    ("linear_num_value_heads", _gated_delta_net),
    ("linear_attn_config", _delta_attention),
    (
        "mamba_num_heads",  # Nemotron-H, whose matrices are float32 unless it says otherwise
        _mamba_2(
            "mamba_num_heads",
            "mamba_head_dim",
            "n_groups",
            "ssm_state_size",
            "conv_kernel",
            own_dtype="float32",
        ),
    ),
    (
        "mamba_n_heads",  # Granite 4, Falcon-H1, Bamba
        _mamba_2("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"),
    ),
    (
        "n_mamba_heads",  # Zamba 2
        _mamba_2("n_mamba_heads", "mamba_headdim", "mamba_ngroups", "mamba_d_state", "mamba_d_conv"),
    ),
    ("conv_L_cache", _short_convolution),
    ("mamba_d_state", _mamba_1),
    ("state_size", _pure_mamba),
)
