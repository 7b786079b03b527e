"""How a model is to be served: the memory there is, the parallelism, and what vLLM would refuse of it.

Sizes are exact fractions of bytes; numbers of GPUs are whole. The formulas are in `capacity`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import TYPE_CHECKING

from kvgate_policies.capacity_dtypes import AUTO, CapacityError
from kvgate_policies.capacity_groups import Serving
from kvgate_policies.model_shape import Kind, only

if TYPE_CHECKING:
    from kvgate_policies.model_shape import ModelShape

UTILIZATION_DEFAULT = Fraction(92, 100)
"""vLLM 0.32's own."""
BLOCK_SIZE_DEFAULT = 16
LATENT_BLOCK_SIZE_DEFAULT = 64
"""What vLLM's kernels for latent attention use (FlashMLA)."""
BATCHED_TOKENS_DEFAULT = 8192
"""vLLM's `--max-num-batched-tokens` on cards from 70 GiB."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a GPU has, and what else than KV cache lies in it. Bytes."""

    gpu: Fraction
    utilization: Fraction
    """Share of the GPU that vLLM may take."""
    weights: Fraction
    """Of the whole model: they are divided evenly over the GPUs of one engine."""
    overhead: Fraction
    """Of each GPU: activations, CUDA graphs, communication buffers."""

    def left_bytes(self, gpus_per_engine: int) -> Fraction:
        """What is left for KV cache on one GPU, not rounded; below 0 where the rest does not fit."""
        return self.gpu * self.utilization - self.weights / gpus_per_engine - self.overhead

    def pool_bytes(self, gpus_per_engine: int) -> int:
        """What is left for KV cache on one GPU. Raises CapacityError when that is nothing."""
        left = self.left_bytes(gpus_per_engine)
        if left <= 0:
            raise CapacityError(
                f"no memory is left for KV cache: the weights and the overhead take {_gib(-left)} more than the "
                f"{_gib(self.gpu * self.utilization)} that vLLM may use of a GPU. Take more GPUs (--tp), a larger "
                "one, quantized weights, or a higher --gpu-memory-utilization"
            )
        return floor(left)


@dataclass(frozen=True, slots=True)
class Setup:
    """A model as it is to be served."""

    shape: ModelShape
    memory: Memory | int
    """Of each GPU; or the bytes of its KV cache (vLLM's `--kv-cache-memory-bytes`)."""
    max_model_len: int
    kv_dtype: str = AUTO
    dtype: str = AUTO
    block_size: int | None = None
    """Tokens; None takes what vLLM would."""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    context_parallel: int = 1
    """Decode context parallelism: within the tensor-parallel GPUs."""
    draft_tokens: int = 0
    """Of speculative decoding; above 0 the model's own draft layers have a cache, too."""
    batched_tokens: int = BATCHED_TOKENS_DEFAULT
    prefix_caching: bool = True

    @property
    def gpus_per_engine(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def gpus(self) -> int:
        return self.gpus_per_engine * self.data_parallel


def serving_of(setup: Setup) -> Serving:
    """vLLM keeps one batch more in flight than there are pipeline stages (asynchronous scheduling)."""
    return Serving(
        max_model_len=setup.max_model_len,
        in_flight_tokens=(setup.pipeline_parallel + 1) * setup.batched_tokens,
        draft_tokens=setup.draft_tokens,
        prefix_caching=setup.prefix_caching,
        context_parallel=setup.context_parallel,
    )


def block_size_of(setup: Setup) -> int:
    """Tokens of a block before recurrent states raise it: as given, or what vLLM would take."""
    if setup.block_size is not None:
        return setup.block_size
    latent = only(setup.shape.layers, Kind.LATENT)
    return LATENT_BLOCK_SIZE_DEFAULT if latent else BLOCK_SIZE_DEFAULT


def check_setup(setup: Setup, shape: ModelShape) -> None:
    """Raises CapacityError for what vLLM would refuse; `shape` is the setup's with its draft layers, if any."""
    if not shape.layers:
        raise CapacityError("no layer of this model has a KV cache: there is nothing to plan")
    tp, pp, dcp = setup.tensor_parallel, setup.pipeline_parallel, setup.context_parallel
    if shape.attention_heads is not None and shape.attention_heads % tp:
        raise CapacityError(f"--tp {tp}: does not divide the model's {shape.attention_heads} attention heads")
    if pp > shape.depth:
        raise CapacityError(f"--pp {pp}: more stages than the model's {shape.depth} layers")
    if dcp > 1:
        _check_context_parallel(shape, tp, dcp)


def _check_context_parallel(shape: ModelShape, tp: int, dcp: int) -> None:
    if tp % dcp:
        raise CapacityError(f"--dcp {dcp}: is taken from the GPUs of --tp {tp} and must divide them")
    if only(shape.layers, Kind.SLIDING, Kind.CHUNKED):
        raise CapacityError(f"--dcp {dcp}: vLLM 0.32 has no decode context parallelism with windows")
    for layer in only(shape.layers, Kind.FULL):
        if dcp > tp // layer.kv_heads:
            raise CapacityError(
                f"--dcp {dcp}: it deals out the copies of KV heads, and --tp {tp} has "
                f"{tp // layer.kv_heads} of each of {layer.kv_heads}; allowed: at most that many"
            )


def _gib(size: Fraction) -> str:
    return f"{float(size / 1024**3):.4g} GiB"
