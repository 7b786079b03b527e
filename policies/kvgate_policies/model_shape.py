"""What a model keeps of each token: its KV layers, read from a `config.json` or typed in.

`read_model` reads the fields that vLLM 0.32 reads, by the same rules of precedence (`head_dim` before
`hidden_size / num_attention_heads`, `num_key_value_heads` ignored for latent attention, …), and keeps the
layers in their order, since pipeline stages and KV groups depend on it. It never guesses: a field that is
missing, of the wrong kind or unknown is a `ModelShapeError` that names the field, what was found, and what is
allowed. What vLLM allocates for the layers is the business of `capacity_groups`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class ModelShapeError(ValueError):
    """A model description can't be used; the message names the field, what was found and what is allowed."""


class Kind(StrEnum):
    """How a layer keeps what it needs of the past."""

    FULL = "full attention"
    """Keys and values of every token, to the end."""
    LATENT = "latent attention"
    """One compressed vector for each token (MLA), the same on every tensor-parallel GPU."""
    INDEX = "sparse index"
    """One small key for each token, by which sparse attention picks (DeepSeek-V3.2)."""
    SLIDING = "sliding window"
    """Keys and values of the last `window` tokens."""
    CHUNKED = "chunked attention"
    """Keys and values of the present chunk of `window` tokens (Llama 4)."""
    STATE = "recurrent state"
    """A state of constant size for the whole sequence (Mamba, linear attention, short convolution)."""
    CROSS = "cross attention"
    """Keys and values of the encoder's `window` tokens, constant for a sequence."""


@dataclass(frozen=True, slots=True)
class State:
    """The recurrent state of one layer for one sequence, before it is split over tensor-parallel GPUs.

    Two parts: the last inputs of a convolution, `taps` for each of its channels, and a matrix for each head.
    """

    channels: int
    """Of the convolution, without those of `groups`."""
    taps: int
    """Inputs kept for each channel: the kernel's size − 1."""
    heads: int = 0
    head_elements: int = 0
    """Of one head's matrix."""
    groups: int = 0
    """Mamba 2: groups of further channels, copied where they don't divide by the GPUs."""
    group_channels: int = 0
    head_dtype: str | None = None
    """Of the matrices; None is the model's own."""
    drafts_add_taps: bool = False
    """Whether speculative decoding keeps one more input for each draft token."""

    def elements(self, tensor_parallel: int, draft_tokens: int = 0) -> tuple[int, int]:
        """Elements on one GPU: of the convolution, and of the matrices.

        Raises ModelShapeError where the state doesn't divide by the GPUs. Source: vLLM 0.32,
        `MambaStateShapeCalculator`.
        """
        groups = self.groups if self.groups % tensor_parallel == 0 else tensor_parallel
        channels = self.channels + groups * self.group_channels
        for what, number in (("convolution channels", channels), ("state heads", self.heads)):
            if number % tensor_parallel:
                raise ModelShapeError(f"{number} {what} do not divide by {tensor_parallel} GPUs")
        taps = self.taps + (draft_tokens if self.drafts_add_taps else 0)
        return channels // tensor_parallel * taps, self.heads // tensor_parallel * self.head_elements


@dataclass(frozen=True, slots=True)
class KVLayer:
    """One layer's cache. A decoder layer may have two (attention and a sparse index, attention and a state)."""

    index: int
    """The decoder layer it belongs to, from 0: decides on its pipeline stage."""
    kind: Kind
    kv_heads: int = 1
    """Before they are split over tensor-parallel GPUs."""
    head_dim: int = 0
    """Elements of a key; of the one stored vector for LATENT; bytes of the stored key for INDEX."""
    head_dim_v: int = 0
    """Elements of a value."""
    window: int | None = None
    """Tokens, where the kind has one."""
    state: State | None = None


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model as its KV cache sees it."""

    layers: tuple[KVLayer, ...]
    """Those that own KV cache, in order; a layer that shares another's is not among them."""
    depth: int
    """Decoder layers in all: what pipeline parallelism splits."""
    dtype: str | None = None
    """Of the weights, as vLLM would load them; None is unknown."""
    kv_dtype: str | None = None
    """The KV cache dtype that `auto` stands for where it isn't `dtype`: set by the checkpoint or the model."""
    attention_heads: int | None = None
    max_model_len: int | None = None
    """Tokens, by the configuration alone."""
    name: str | None = None
    draft_layers: tuple[KVLayer, ...] = ()
    """Multi-token-prediction layers, which have a cache only while speculative decoding is on."""
    notes: tuple[str, ...] = ()
    """What a reader of the numbers should know, a sentence each."""

    def with_drafts(self) -> ModelShape:
        """The shape with its draft layers among the others, as speculative decoding runs it."""
        return replace(self, layers=(*self.layers, *self.draft_layers), draft_layers=())

    def kinds(self) -> dict[Kind, int]:
        """How many layers there are of each kind."""
        return {kind: count for kind in Kind if (count := sum(layer.kind is kind for layer in self.layers))}


def typed_model(layers: int, kv_heads: int, head_dim: int) -> ModelShape:
    """A model of which only the dimensions are known: full attention in every layer.

    Raises ModelShapeError for a number below 1.
    """
    for name, number in (("layers", layers), ("kv_heads", kv_heads), ("head_dim", head_dim)):
        if number < 1:
            raise ModelShapeError(f"{name}: {number} is not allowed; allowed: a whole number from 1")
    full = KVLayer(0, Kind.FULL, kv_heads, head_dim, head_dim)
    return ModelShape(tuple(replace(full, index=index) for index in range(layers)), layers)


def layers_in_words(model: ModelShape) -> str:
    """The layers, for people: "12 layers of sliding window (128), 12 layers of full attention"."""
    found = Counter((layer.kind, layer.window) for layer in model.layers)
    return ", ".join(
        f"{count} {'layer' if count == 1 else 'layers'} of {kind}" + (f" ({window:,})" if window else "")
        for (kind, window), count in found.items()
    )


def only(layers: Iterable[KVLayer], *kinds: Kind) -> tuple[KVLayer, ...]:
    """The layers of some kinds."""
    return tuple(layer for layer in layers if layer.kind in kinds)
