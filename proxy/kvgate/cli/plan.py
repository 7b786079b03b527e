"""`kvgate plan`: how many sessions fit, why, and what would make it more."""

from __future__ import annotations

import json
import re
import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgate.cli.load_words import check_writable
from kvgate.cli.options import option
from kvgate.errors import ConfigError

if TYPE_CHECKING:
    from kvgate.planner.sizes import Size
    from kvgate.traffic import Traffic

MODEL = "The model"
MEMORY = "The memory of a GPU"
SERVING = "How it is served"
ANSWER = "The answer"
LAYERS_MAX, NUMBER_MAX = 4096, 1_000_000_000
TARGET_MAX = 1000


def _option(
    flag: str,
    panel: str,
    text: str,
    metavar: str | None = None,
    least: int | None = None,
    most: int | None = None,
) -> Any:
    """A number is bounded far above what there is, so that no sum runs away."""
    if least is not None and most is None:
        most = NUMBER_MAX
    return option(flag, panel, text, metavar, least, most)


def plan(
    model: Annotated[
        Path | None, _option("--model", MODEL, "Its config.json, or the folder with it.", "CONFIG_JSON")
    ] = None,
    layers: Annotated[
        int | None, _option("--layers", MODEL, "Without a config.json: its layers.", "N", 1, LAYERS_MAX)
    ] = None,
    kv_heads: Annotated[int | None, _option("--kv-heads", MODEL, "And its KV heads.", "N", 1)] = None,
    head_dim: Annotated[int | None, _option("--head-dim", MODEL, "And elements of a head.", "N", 1)] = None,
    dtype: Annotated[
        str, _option("--dtype", MODEL, "Of weights: auto (default), fp16, bf16, fp32.", "DTYPE")
    ] = "auto",
    kv_dtype: Annotated[
        str | None,
        _option("--kv-dtype", MODEL, "Of the KV cache: auto (default: as the model), fp8, nvfp4 …", "DTYPE"),
    ] = None,
    gpu_memory: Annotated[
        str | None, _option("--gpu-memory", MEMORY, "Of one GPU, with its unit: 80GiB or 80GB.", "SIZE")
    ] = None,
    gpu_memory_utilization: Annotated[
        str | None,
        _option(
            "--gpu-memory-utilization", MEMORY, "The share vLLM may take. Default: 0.92, as vLLM's", "SHARE"
        ),
    ] = None,
    weights: Annotated[
        str | None,
        _option("--weights", MEMORY, "Of the whole model. Default: the files in its folder", "SIZE"),
    ] = None,
    overhead: Annotated[
        str | None, _option("--overhead", MEMORY, "For all else on a GPU. Default: 4GiB", "SIZE")
    ] = None,
    kv_cache_memory_bytes: Annotated[
        str | None,
        _option(
            "--kv-cache-memory-bytes", MEMORY, "Instead of all these: the KV cache's, on each GPU.", "SIZE"
        ),
    ] = None,
    max_model_len: Annotated[
        int | None, _option("--max-model-len", SERVING, "Tokens of the longest session.", "N", 1)
    ] = None,
    block_size: Annotated[
        int | None,
        _option("--block-size", SERVING, "Tokens of a block. Default: 16, latent attention 64", "N", 1),
    ] = None,
    tp: Annotated[int, _option("--tp", SERVING, "GPUs of tensor parallelism. Default: 1", "N", 1)] = 1,
    pp: Annotated[int, _option("--pp", SERVING, "Stages of pipeline parallelism. Default: 1", "N", 1)] = 1,
    dp: Annotated[
        int | None, _option("--dp", SERVING, "Copies (data parallelism). Default: 1", "N", 1)
    ] = None,
    dcp: Annotated[
        int, _option("--dcp", SERVING, "GPUs of decode context parallelism. Default: 1", "N", 1)
    ] = 1,
    speculative_tokens: Annotated[
        int,
        _option("--speculative-tokens", SERVING, "Draft tokens of speculative decoding. Default: 0", "N", 0),
    ] = 0,
    max_num_batched_tokens: Annotated[
        int | None,
        _option(
            "--max-num-batched-tokens", SERVING, "vLLM's; matters with windows only. Default: 8192", "N", 1
        ),
    ] = None,
    prefix_caching: Annotated[
        bool | None,
        typer.Option(
            "--prefix-caching/--no-prefix-caching",
            help="vLLM's; matters with recurrent states only. Default: on",
            rich_help_panel=SERVING,
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None, _option("--target", ANSWER, "Say what gets there: 8x is eight times as many.", "TIMES")
    ] = None,
    backend: Annotated[
        str | None,
        _option("--backend", ANSWER, "A running vLLM: fill in what it reports, and compare.", "URL"),
    ] = None,
    traffic: Annotated[
        Path | None,
        _option("--traffic", ANSWER, "A request log: what fits of what is really asked, and is cut.", "LOG"),
    ] = None,
    plot: Annotated[
        Path | None, _option("--plot", ANSWER, "Draw the ceiling against the length: .png or .svg.", "FILE")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answer as JSON.", rich_help_panel=ANSWER)
    ] = False,
) -> int:
    """How many sessions fit into a GPU's KV cache, why, and what would make it more."""
    from kvgate.planner import (  # noqa: PLC0415  httpx and rich, which no other command waits for
        Question,
        answer_json,
        ask_backend,
        make_answer,
        plot_format,
        print_report,
        write_plot,
    )

    if plot is not None:
        plot_format(plot)
        check_writable("--plot", plot)
    question = Question(
        model=model,
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        kv_dtype=kv_dtype,
        gpu_memory=_size("--gpu-memory", gpu_memory),
        utilization=_utilization(gpu_memory_utilization),
        weights=_size("--weights", weights),
        overhead=_size("--overhead", overhead),
        kv_cache_memory=_size("--kv-cache-memory-bytes", kv_cache_memory_bytes, bare="B"),
        max_model_len=max_model_len,
        block_size=block_size,
        tensor_parallel=tp,
        pipeline_parallel=pp,
        data_parallel=dp,
        context_parallel=dcp,
        draft_tokens=speculative_tokens,
        batched_tokens=max_num_batched_tokens,
        prefix_caching=prefix_caching,
        target=_target(target),
        backend=backend,
    )
    measured = _traffic(traffic) if traffic is not None else None
    answer = make_answer(question, ask_backend(backend) if backend is not None else None, measured)
    if plot is not None:
        write_plot(answer, plot)
    if as_json:
        typer.echo(json.dumps(answer_json(answer), indent=2))
    else:
        print_report(answer, sys.stdout)
    return 0


def _traffic(log: Path) -> Traffic:
    """Raises ConfigError when no length can be read from it."""
    from kvgate.traffic import of_log, read_log  # noqa: PLC0415

    found = of_log(read_log(log))
    if not found.whole:
        raise ConfigError(
            f"--traffic: {log}: none of its {found.requests:,} requests ran to its end, so no length is known"
        )
    return found


def _size(option: str, text: str | None, bare: str = "") -> Size | None:
    """A size; `bare` is the unit of a number without one, where the option's name says it."""
    from kvgate.planner.sizes import read_size  # noqa: PLC0415

    if text is None:
        return None
    try:
        return read_size(text + bare if text.strip().isdecimal() else text)
    except ValueError as error:
        raise ConfigError(f"{option}: {text!r} is not allowed; allowed: {error}") from error


def _utilization(text: str | None) -> Fraction | None:
    from kvgate.planner.sizes import read_share  # noqa: PLC0415

    if text is None:
        return None
    share = read_share(text)
    if share is None:
        raise ConfigError(
            f"--gpu-memory-utilization: {text!r} is not allowed; allowed: above 0 and at most 1, such as 0.9"
        )
    return share


def _target(text: str | None) -> float | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)[x×]?", text.strip(), re.ASCII)
    if match is None or not 1 < float(match[1]) <= TARGET_MAX:
        raise ConfigError(
            f"--target: {text!r} is not allowed; allowed: how many times as many, such as 8x, at most {TARGET_MAX}x"
        )
    return float(match[1])
