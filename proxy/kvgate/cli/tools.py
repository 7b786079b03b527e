"""`kvgate sim-engine`, `kvgate demo`, `kvgate version`."""

from __future__ import annotations

import json
import platform
from typing import Annotated

import typer

from kvgate import __version__
from kvgate.errors import ConfigError


def sim_engine(
    blocks: Annotated[int, typer.Option(min=2, metavar="N", help="KV blocks, as vLLM counts them.")],
    block_size: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of a block.")],
    max_model_len: Annotated[int, typer.Option(min=1, metavar="N", help="The window in tokens.")],
    max_num_seqs: Annotated[int, typer.Option(min=1, metavar="N", help="Sequences that run at once.")],
    host: Annotated[str, typer.Option(metavar="ADDR", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="0 takes a free port.")] = 8000,
    profile: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="How long a step takes: a profile's name or FILE.yaml.")
    ] = "vllm-cpu-tiny",
    model: Annotated[str, typer.Option(metavar="NAME", help="The name it serves.")] = "sim",
    max_num_queued_reqs: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Refuse as busy above this many waiting.")
    ] = None,
) -> int:
    """A simulated vLLM server: its scheduler and its wire format, without a model."""
    from kvgate.sim import run  # noqa: PLC0415

    try:
        run(
            host=host,
            port=port,
            blocks=blocks,
            block_size=block_size,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_queued_reqs=max_num_queued_reqs,
            profile=profile,
            model=model,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error  # sizes that no engine would start with
    except OSError as error:
        raise ConfigError(f"cannot listen on {host} port {port} (--port): {error.strerror}") from error
    return 0


def demo(
    seconds: Annotated[
        int, typer.Option(min=15, max=3600, metavar="N", help="About how long it takes.")
    ] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Show the main job: an overload sent directly to two simulated engines, then through kvgate."""
    from kvgate.demo import run  # noqa: PLC0415

    return run(seconds=seconds, json=as_json)


def version(
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Print the version."""
    python = platform.python_version()
    typer.echo(json.dumps({"kvgate": __version__, "python": python}) if as_json else f"kvgate {__version__}")
    return 0
