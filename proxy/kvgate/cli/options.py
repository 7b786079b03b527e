"""How an option is declared, and the options that `serve` and `check` share, once."""

from __future__ import annotations

import inspect
import os
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvgate.assembly.file import PolicySource
    from kvgate.config import Settings

POOL = "The pool"
QUEUE = "Queue and limits"
PROCESS = "This process"
BY_HAND = "Where discovery can't"

ENVIRONMENT = (
    "Every option can also be given by an environment variable (KVGATE_QUEUE_WAIT=10s; "
    "KVGATE_BACKENDS with commas) or in a policy file; the command line wins, then the environment."
)


def option(
    flag: str,
    panel: str,
    text: str,
    metavar: str | None = None,
    least: int | None = None,
    most: int | None = None,
) -> Any:
    """What help shows of it, in which of its panels; a number may have bounds."""
    return typer.Option(
        flag, help=text, rich_help_panel=panel, metavar=metavar, show_default=False, min=least, max=most
    )


def setting_options(
    backend: Annotated[
        list[str] | None,
        option("--backend", POOL, "Base URL of a vLLM server; once for each.", "URL"),
    ] = None,
    policy: Annotated[Path | None, option("--policy", POOL, "A policy file (YAML).", "FILE")] = None,
    pool: Annotated[
        str | None,
        option("--pool", POOL, "Its name in metrics and in a shared ledger. Default: default", "NAME"),
    ] = None,
    ledger: Annotated[
        str | None,
        option(
            "--ledger",
            POOL,
            "Where reservations are kept: memory:// (default), or redis://HOST:PORT/DB, shared by processes.",
            "URL",
        ),
    ] = None,
    ledger_on_failure: Annotated[
        str | None,
        option(
            "--ledger-on-failure",
            POOL,
            "Without the shared ledger: local (default: a share of the room), closed (nothing) or open (all).",
            "HOW",
        ),
    ] = None,
    ledger_lease: Annotated[
        str | None,
        option(
            "--ledger-lease", POOL, "How long a silent process keeps its reservations. Default: 5s", "TIME"
        ),
    ] = None,
    reservation: Annotated[
        str | None,
        option(
            "--reservation",
            POOL,
            "What a request reserves: what it is expected to hold (forecast, the default), or its peak (guaranteed).",
            "HOW",
        ),
    ] = None,
    risk: Annotated[
        str | None,
        option("--risk", POOL, "How often forecasts may be too low for an engine. Default: 1%", "SHARE"),
    ] = None,
    prefix_sharing: Annotated[
        str | None,
        option(
            "--prefix-sharing",
            POOL,
            "Whether requests that begin alike reserve the KV blocks of that beginning once: on, or off (default).",
            "SWITCH",
        ),
    ] = None,
    prompt_tokens: Annotated[
        str | None,
        option(
            "--prompt-tokens",
            POOL,
            "Who counts prompt tokens: learned (default), backend, or local:DIR with a tokenizer.json.",
            "WHO",
        ),
    ] = None,
    max_num_seqs: Annotated[
        str | None,
        option("--max-num-seqs", POOL, "The engines' --max-num-seqs. Default: 256", "N"),
    ] = None,
    max_tokens_default: Annotated[
        str | None,
        option(
            "--max-tokens-default",
            QUEUE,
            "Output limit written into requests that set none. Default: none; with --reservation guaranteed 2048",
            "N",
        ),
    ] = None,
    queue_depth: Annotated[
        str | None,
        option("--queue-depth", QUEUE, "Requests that may wait; more are refused. Default: 200", "N"),
    ] = None,
    queue_wait: Annotated[
        str | None,
        option("--queue-wait", QUEUE, "How long one may wait, such as 30s (default) or 5m.", "TIME"),
    ] = None,
    host: Annotated[
        str | None, option("--host", PROCESS, "Where clients connect. Default: 127.0.0.1", "ADDR")
    ] = None,
    port: Annotated[str | None, option("--port", PROCESS, "Default: 8080; 0 takes a free one.", "N")] = None,
    admin_host: Annotated[
        str | None,
        option("--admin-host", PROCESS, "Probes, metrics, /admin. Default: 127.0.0.1", "ADDR"),
    ] = None,
    admin_port: Annotated[
        str | None, option("--admin-port", PROCESS, "Default: 9091; 0 takes a free one.", "N")
    ] = None,
    workers: Annotated[
        str | None,
        option("--workers", PROCESS, "Processes on one port; needs a shared ledger. Default: 1", "N"),
    ] = None,
    log_level: Annotated[
        str | None,
        option("--log-level", PROCESS, "debug, info (default), warning or error.", "LEVEL"),
    ] = None,
    log_format: Annotated[
        str | None, option("--log-format", PROCESS, "json (default) or text.", "FORMAT")
    ] = None,
    request_log: Annotated[
        str | None,
        option("--request-log", PROCESS, "Write numbers of each request here, for `kvgate traffic`.", "FILE"),
    ] = None,
    state_dir: Annotated[
        str | None,
        option("--state-dir", PROCESS, "Keep what was learned of lengths here, over a restart.", "DIR"),
    ] = None,
    otlp_endpoint: Annotated[
        str | None,
        option(
            "--otlp-endpoint",
            PROCESS,
            "Send traces to this collector, such as http://collector:4318 (OTLP over HTTP).",
            "URL",
        ),
    ] = None,
    trace_sample: Annotated[
        str | None,
        option("--trace-sample", PROCESS, "Traces to keep of those begun here. Default: 100%", "SHARE"),
    ] = None,
    num_gpu_blocks: Annotated[
        str | None,
        option("--num-gpu-blocks", BY_HAND, "KV blocks of an engine, as vLLM counts them.", "N"),
    ] = None,
    block_size: Annotated[str | None, option("--block-size", BY_HAND, "Tokens of a KV block.", "N")] = None,
    max_model_len: Annotated[
        str | None, option("--max-model-len", BY_HAND, "The model's window in tokens.", "N")
    ] = None,
    model_config: Annotated[
        str | None,
        option("--model-config", BY_HAND, "The model's config.json, for one with several KV groups.", "FILE"),
    ] = None,
) -> dict[str, object]:
    """The options as given, by their names in `kvgate.config`; None is not given.

    All are text here: `kvgate.config` reads numbers, and says what is allowed, in one way for all sources.
    """
    values: dict[str, object] = dict(locals())
    values["backends"] = values.pop("backend") or None
    return values


def takes_settings(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the shared options; it receives them as one mapping, before its own."""
    shared = inspect.signature(setting_options, eval_str=True).parameters
    _, *own = inspect.signature(command, eval_str=True).parameters.values()

    @wraps(command)
    def run(**values: Any) -> int:
        given = {name: values.pop(name) for name in shared}
        return command(setting_options(**given), **values)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*shared.values(), *own)]
    run.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": int}
    return run


def settings_from(options: dict[str, object]) -> Settings:
    """The effective settings. Raises ConfigError."""
    from kvgate.config import load, policy_path  # noqa: PLC0415  pydantic takes 100 ms

    return load(_path(options, policy_path), os.environ, options)


def policy_source(options: dict[str, object]) -> PolicySource:
    """Where the settings come from, to be read now and again."""
    from kvgate.assembly.file import PolicySource  # noqa: PLC0415
    from kvgate.config import policy_path  # noqa: PLC0415

    return PolicySource(lambda: settings_from(options), _path(options, policy_path))


def _path(
    options: dict[str, object], policy_path: Callable[[Path | None, Mapping[str, str]], Path | None]
) -> Path | None:
    policy = options["policy"]
    return policy_path(policy if isinstance(policy, Path) else None, os.environ)
