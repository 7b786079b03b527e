"""What `kvgate plan` was asked, as it was typed, and the setup that follows from it.

A value has one of four sources, and the first wins: the command line, a running server, the model's files,
vLLM's own default. What none of them says is an error that names the option.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

from kvgate.errors import ConfigError
from kvgate.planner.model_files import read_config, weights_size
from kvgate.planner.sizes import Size
from kvgate_policies.capacity import make_plan
from kvgate_policies.capacity_dtypes import AUTO, DTYPES, KV_DTYPES, CapacityError, dtype_named
from kvgate_policies.capacity_setup import UTILIZATION_DEFAULT, Memory, Setup
from kvgate_policies.model_shape import ModelShape, ModelShapeError, typed_model
from kvgate_policies.model_shape_read import read_model

if TYPE_CHECKING:
    from pathlib import Path

    from kvgate.planner.backend import Reported

_T = TypeVar("_T")

OVERHEAD_DEFAULT = Size(Fraction(4), "GiB")
"""Activations, CUDA graphs and buffers of a model of 8 to 70 billion parameters come to 2 to 6 GiB."""


@dataclass(frozen=True, slots=True)
class Question:
    """The command line. None is not given."""

    model: Path | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    dtype: str = AUTO
    kv_dtype: str | None = None
    gpu_memory: Size | None = None
    utilization: Fraction | None = None
    weights: Size | None = None
    overhead: Size | None = None
    kv_cache_memory: Size | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int | None = None
    context_parallel: int = 1
    draft_tokens: int = 0
    batched_tokens: int | None = None
    prefix_caching: bool | None = None
    target: float | None = None
    backend: str | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """The memory figures that the pool is computed from, as written; with a pool given directly only that."""

    gpu: Size
    utilization: Fraction
    weights: Size
    overhead: Size

    def memory(self) -> Memory:
        return Memory(self.gpu.bytes, self.utilization, self.weights.bytes, self.overhead.bytes)


@dataclass(frozen=True, slots=True)
class Understood:
    """The question with everything filled in."""

    question: Question
    setup: Setup
    sizes: Sizes | None
    """None where the KV cache's memory was given directly or taken from a running server."""
    assumed: tuple[str, ...]
    """What was not typed, and where it comes from; a sentence each."""

    from_blocks: bool = False
    """Whether the memory was worked out from a server's blocks: then there is nothing to compare them with."""

    def other_sizes(self) -> Sizes | None:
        """With GB for GiB, and the other way round, in what was typed; None where that changes nothing."""
        if self.sizes is None:
            return None
        typed = {
            "gpu": self.question.gpu_memory,
            "weights": self.question.weights,
            "overhead": self.question.overhead,
        }
        others: dict[str, Any] = {
            name: size.other_reading for name, size in typed.items() if size is not None
        }
        other = replace(self.sizes, **others)
        return None if other == self.sizes else other


def understand(question: Question, reported: Reported | None = None) -> Understood:
    """Fill in the question. Raises ConfigError naming the option."""
    try:
        return _understand(question, reported)
    except (CapacityError, ModelShapeError) as error:
        raise ConfigError(str(error)) from error


def _understand(question: Question, reported: Reported | None) -> Understood:
    shape = _shape(question)
    assumed: list[str] = []
    sizes = _sizes(question, reported, assumed)
    setup = Setup(
        shape=shape,
        memory=0,
        max_model_len=_max_model_len(question, shape, reported, assumed),
        kv_dtype=_kv_dtype(question, reported, assumed),
        dtype=dtype_named(question.dtype, DTYPES, "--dtype"),
        block_size=_block_size(question, reported, assumed),
        tensor_parallel=question.tensor_parallel,
        pipeline_parallel=question.pipeline_parallel,
        data_parallel=question.data_parallel or (len(reported.ranks) if reported else 1),
        context_parallel=question.context_parallel,
        draft_tokens=question.draft_tokens,
    )
    setup = _tuned(setup, question, reported)
    setup = _with_memory(setup, question, sizes, reported, assumed)
    given = sizes is not None or question.kv_cache_memory is not None
    from_blocks = not given and (reported is None or reported.pool_bytes is None)
    return Understood(question, setup, sizes, tuple(assumed), from_blocks)


def _tuned(setup: Setup, question: Question, reported: Reported | None) -> Setup:
    if question.batched_tokens is not None:
        setup = replace(setup, batched_tokens=question.batched_tokens)
    caching = question.prefix_caching
    if caching is None and reported is not None:
        caching = reported.prefix_caching
    return setup if caching is None else replace(setup, prefix_caching=caching)


def _shape(question: Question) -> ModelShape:
    typed = {"--layers": question.layers, "--kv-heads": question.kv_heads, "--head-dim": question.head_dim}
    given = {name: value for name, value in typed.items() if value is not None}
    if question.model is not None:
        if given:
            raise ConfigError(f"{', '.join(given)}: not together with --model, which says it already")
        try:
            return read_model(read_config(question.model))
        except ModelShapeError as error:
            raise ConfigError(f"--model: {question.model}: {error}") from error
    if len(given) < len(typed):
        missing = ", ".join(name for name in typed if name not in given)
        raise ConfigError(f"the model is not described: give --model CONFIG_JSON, or {missing}")
    return typed_model(question.layers or 0, question.kv_heads or 0, question.head_dim or 0)


def _sizes(question: Question, reported: Reported | None, assumed: list[str]) -> Sizes | None:
    if question.kv_cache_memory is not None:
        if question.gpu_memory is not None:
            raise ConfigError(
                "--kv-cache-memory-bytes: not together with --gpu-memory; it says what is left of it"
            )
        return None
    if question.gpu_memory is None:
        if reported is not None and reported.num_gpu_blocks:
            return None
        raise ConfigError(
            "--gpu-memory: is missing; allowed: the memory of one GPU with its unit, such as 80GiB; or give "
            "--kv-cache-memory-bytes, or the --backend of a running vLLM"
        )
    return Sizes(
        question.gpu_memory,
        _utilization(question, reported, assumed),
        _weights(question, assumed),
        question.overhead or _assume(OVERHEAD_DEFAULT, "--overhead", "a usual figure", assumed),
    )


def _utilization(question: Question, reported: Reported | None, assumed: list[str]) -> Fraction:
    if question.utilization is not None:
        return question.utilization
    if reported is not None and reported.utilization is not None:
        return _assume(reported.utilization, "--gpu-memory-utilization", "as the server reports", assumed)
    return _assume(UTILIZATION_DEFAULT, "--gpu-memory-utilization", "vLLM's default", assumed)


def _weights(question: Question, assumed: list[str]) -> Size:
    if question.weights is not None:
        return question.weights
    found = weights_size(question.model) if question.model is not None else None
    if found is None:
        raise ConfigError(
            "--weights: is missing; allowed: the size of the model's weight files with its unit, such as 16GiB "
            "(or --model with the folder that has them)"
        )
    return _assume(found, "--weights", f"the *.safetensors in {question.model}", assumed)


def _max_model_len(
    question: Question, shape: ModelShape, reported: Reported | None, assumed: list[str]
) -> int:
    if question.max_model_len is not None:
        return question.max_model_len
    if reported is not None and reported.max_model_len is not None:
        return _assume(reported.max_model_len, "--max-model-len", "as the server reports", assumed)
    if shape.max_model_len is not None:
        return _assume(shape.max_model_len, "--max-model-len", "the model's own", assumed)
    raise ConfigError("--max-model-len: is missing; allowed: tokens of the longest session, such as 8192")


def _block_size(question: Question, reported: Reported | None, assumed: list[str]) -> int | None:
    if question.block_size is not None or reported is None or reported.block_size is None:
        return question.block_size
    return _assume(reported.block_size, "--block-size", "as the server reports", assumed)


def _kv_dtype(question: Question, reported: Reported | None, assumed: list[str]) -> str:
    if question.kv_dtype is not None or reported is None or reported.kv_dtype in {None, AUTO}:
        return dtype_named(question.kv_dtype or AUTO, KV_DTYPES, "--kv-dtype")
    named = dtype_named(reported.kv_dtype or AUTO, KV_DTYPES, "the server's cache_dtype")
    return _assume(named, "--kv-dtype", "as the server reports", assumed)


def _with_memory(
    setup: Setup, question: Question, sizes: Sizes | None, reported: Reported | None, assumed: list[str]
) -> Setup:
    if sizes is not None:
        return replace(setup, memory=sizes.memory())
    if question.kv_cache_memory is not None:
        return replace(setup, memory=int(question.kv_cache_memory.bytes))
    if reported is not None and reported.pool_bytes is not None:
        size = Size(Fraction(reported.pool_bytes), "B")
        return replace(
            setup,
            memory=int(_assume(size, "--kv-cache-memory-bytes", "as the server reports", assumed).bytes),
        )
    blocks = reported.num_gpu_blocks if reported is not None and reported.num_gpu_blocks is not None else 0
    block_bytes = make_plan(setup).bytes_per_block
    assumed.append(f"memory for KV cache: {blocks:,} blocks of {block_bytes:,} bytes, as the server reports")
    return replace(setup, memory=blocks * block_bytes)


def _assume(value: _T, option: str, source: str, assumed: list[str]) -> _T:
    shown = (
        f"{value:,}"
        if isinstance(value, int)
        else f"{float(value):g}"
        if isinstance(value, Fraction)
        else value
    )
    assumed.append(f"{option} {shown}: {source}")
    return value
