"""`kvgate traffic`: how long requests really are, and what that means for limits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from kvgate.errors import ConfigError


def traffic(
    log: Annotated[
        Path | None,
        typer.Argument(metavar="[LOG]", help="A request log; what was put aside of it is read, too."),
    ] = None,
    from_metrics: Annotated[
        str | None,
        typer.Option("--from-metrics", metavar="URL", help="The histograms of a running vLLM instead."),
    ] = None,
    max_model_len: Annotated[
        list[int] | None,
        typer.Option(
            "--max-model-len", metavar="N", min=1, help="Whom would this window cut? Once for each."
        ),
    ] = None,
    max_tokens: Annotated[
        list[int] | None,
        typer.Option("--max-tokens", metavar="N", min=1, help="Whom would this cap cut? Once for each."),
    ] = None,
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="NAME", help="Requests of this pool only.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="NAME", help="Requests of this tenant only.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> int:
    """How long requests really are, what is reserved in vain, and whom a shorter limit would cut."""
    from kvgate.traffic import (  # noqa: PLC0415  httpx and rich, which no other command waits for
        of_log,
        of_metrics,
        print_traffic,
        read_log,
        scrape,
        traffic_json,
    )

    if (log is None) == (from_metrics is None):
        raise ConfigError("give either a request log, or --from-metrics URL")
    windows, caps = sorted(set(max_model_len or ())), sorted(set(max_tokens or ()))
    if from_metrics is not None:
        if pool or tenant:
            raise ConfigError("--pool, --tenant: a server's histograms know of neither; a request log does")
        found = of_metrics(scrape(from_metrics), windows, caps)
    elif log is not None:
        found = of_log(read_log(log, pool=pool, tenant=tenant), windows, caps)
    else:
        raise AssertionError("one of both was given")
    if as_json:
        typer.echo(json.dumps(traffic_json(found), indent=2))
    else:
        print_traffic(found, sys.stdout)
    return 0
