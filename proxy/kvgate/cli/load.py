"""`kvgate load`: send load to a URL and say how it was served."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvgate.cli.load_words import (
    check_writable,
    engines_of,
    kind_of,
    rate_of,
    requests_of,
    seconds,
    sizes_of,
    tenants_of,
    urls_of,
    write,
)
from kvgate.cli.options import option as _option
from kvgate.errors import ConfigError

if TYPE_CHECKING:
    from kvgate.load.order import Order
    from kvgate.load.result import Result

WHERE, WHAT, HOW, ANSWER = "Where", "What is sent", "How much of it", "The answer"
IN_FLIGHT_MAX = 4096
"""Each is a connection and some KB; more than this needs more than one client machine."""
EXIT_NOTHING_COMPLETED, EXIT_INTERRUPTED = 1, 130


SloTtft = Annotated[
    str | None, _option("--slo-ttft", ANSWER, "A good answer begins within. Default: 5s", "TIME")
]
SloItl = Annotated[str | None, _option("--slo-itl", ANSWER, "And has a token each. Default: 100ms", "TIME")]


def load(
    url: Annotated[
        str | None,
        typer.Argument(metavar="[URL]", help="Any OpenAI-compatible server. Nothing else is asked."),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        _option(
            "--compare", WHERE, "Two ways to the same engines, one after the other.", "NAME=URL NAME=URL"
        ),
    ] = None,
    engine: Annotated[
        list[str] | None,
        _option("--engine", WHERE, "A vLLM behind it: preemptions are read there. Once for each.", "URL"),
    ] = None,
    model: Annotated[
        str | None, _option("--model", WHERE, "Default: the first one that the server has", "NAME")
    ] = None,
    tenant: Annotated[
        list[str] | None,
        _option(
            "--tenant",
            WHERE,
            "Who sends, and how much of it; KEY or @VARIABLE. Once for each.",
            "NAME:KEY:SHARE",
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        _option(
            "--prompt", WHAT, "Tokens: N, uniform:LEAST:MOST or lognormal:MEDIAN:P99. Default: 256", "LENGTH"
        ),
    ] = None,
    output: Annotated[
        str | None, _option("--output", WHAT, "Tokens of the answer, likewise. Default: 128", "LENGTH")
    ] = None,
    lengths_from: Annotated[
        Path | None, _option("--lengths-from", WHAT, "Both as in this request log, instead.", "LOG")
    ] = None,
    kind: Annotated[
        str, _option("--kind", WHAT, "Prompts as token-ids (default, exact), text, or chat.", "KIND")
    ] = "token-ids",
    untold: Annotated[
        bool,
        _option(
            "--untold", WHAT, "Chats without a limit; a simulated engine is told the length by a header."
        ),
    ] = False,
    worst_case: Annotated[
        bool, _option("--worst-case", WHAT, "And once more with the longest session every time.")
    ] = False,
    seed: Annotated[
        int, _option("--seed", WHAT, "Another one sends other requests. Default: 1", "N", least=0)
    ] = 1,
    concurrency: Annotated[
        int | None,
        _option("--concurrency", HOW, "Clients that each wait for their answer. Default: 8", "N", least=1),
    ] = None,
    rate: Annotated[
        float | None,
        _option("--rate", HOW, "Requests a second instead, whether or not they are answered.", "R"),
    ] = None,
    requests: Annotated[
        int | None,
        _option("--requests", HOW, "How many are sent. Default: until the time is over", "N", least=1),
    ] = None,
    duration: Annotated[
        str | None,
        _option("--duration", HOW, "Nothing is sent later. Default: 60s; 10m with --find-ceiling", "TIME"),
    ] = None,
    drain: Annotated[
        str | None, _option("--drain", HOW, "Then for what still runs. Default: 60s", "TIME")
    ] = None,
    in_flight_max: Annotated[
        int,
        _option("--in-flight-max", HOW, "Never more at once. Default: 512", "N", least=1, most=IN_FLIGHT_MAX),
    ] = 512,
    retries: Annotated[
        int, _option("--retries", HOW, "After 429 and 503, as they say. Default: 0", "N", least=0, most=100)
    ] = 0,
    timeout: Annotated[
        str | None, _option("--timeout", HOW, "For one request. Default: 600s", "TIME")
    ] = None,
    find_ceiling: Annotated[
        bool, _option("--find-ceiling", ANSWER, "At how many sessions at once do preemptions begin?")
    ] = False,
    slo_ttft: SloTtft = None,
    slo_itl: SloItl = None,
    as_json: Annotated[bool, _option("--json", ANSWER, "Print the answer as JSON.")] = False,
    html: Annotated[
        Path | None, _option("--html", ANSWER, "Write it as one page with charts.", "FILE")
    ] = None,
) -> int:
    """Send load to a server, and say how it was served."""
    from kvgate.load import Bounds, Objective, Patience  # noqa: PLC0415  aiohttp, which few commands wait for
    from kvgate.load.order import Order  # noqa: PLC0415

    _check_together(
        compare, concurrency, rate, prompt or output, lengths_from, worst_case, untold, find_ceiling
    )
    if untold and kind_of(kind) is not kind_of("chat"):
        raise ConfigError("--untold: add --kind chat; completions without a limit end after 16 tokens")
    if find_ceiling and (tenant is not None and len(tenant) > 1):
        raise ConfigError("--find-ceiling: with one --tenant at most; it sends sessions of one kind")
    if html is not None:
        check_writable("--html", html)
    duration_s = seconds("--duration", duration, 600.0 if find_ceiling else 60.0)
    defaults = Objective()
    order = Order(
        urls=urls_of(url, compare),
        sizes=sizes_of(prompt, output, lengths_from),
        engines=engines_of(engine),
        model=model,
        rate=rate_of(rate),
        concurrency=min(concurrency or 8, in_flight_max),
        in_flight_max=in_flight_max,
        requests=requests_of(requests),
        bounds=Bounds(duration_s, seconds("--drain", drain, 60.0)),
        tenants=tenants_of(tenant),
        kind=kind_of(kind),
        objective=Objective(
            seconds("--slo-ttft", slo_ttft, defaults.ttft_s_max),
            seconds("--slo-itl", slo_itl, defaults.itl_s_max),
        ),
        patience=Patience(stream_s_max=seconds("--timeout", timeout, 600.0), retries_max=retries),
        seed=seed,
        tells_lengths=not untold,
        worst_case=worst_case,
        find_ceiling=find_ceiling,
    )
    try:
        result = _carried_out(order)
    except KeyboardInterrupt:  # before anything was sent
        return EXIT_INTERRUPTED
    return _report(result, as_json=as_json, html=html)


def _check_together(
    compare: object,
    concurrency: int | None,
    rate: float | None,
    lengths: object,
    lengths_from: Path | None,
    worst_case: bool,
    untold: bool,
    find_ceiling: bool,
) -> None:
    """Raises ConfigError for options that contradict each other."""
    if concurrency is not None and rate is not None:
        raise ConfigError("--concurrency, --rate: only one of both; a rate does not wait for answers")
    if lengths and lengths_from is not None:
        raise ConfigError("--lengths-from: has both lengths; leave out --prompt and --output")
    clashing = {
        "--compare": compare,
        "--rate": rate,
        "--concurrency": concurrency,
        "--worst-case": worst_case,
        "--untold": untold,
    }
    for option, given in clashing.items():
        if find_ceiling and given:
            raise ConfigError(f"--find-ceiling: not with {option}; it decides itself what is sent")


def _carried_out(order: Order) -> Result:
    import asyncio  # noqa: PLC0415

    from kvgate.load.order import carry_out  # noqa: PLC0415
    from kvgate.load.progress import progress_bar  # noqa: PLC0415

    with progress_bar(order.requests) as progress:
        return asyncio.run(carry_out(order, progress))


def _report(result: Result, *, as_json: bool, html: Path | None) -> int:
    from kvgate.load.page import page  # noqa: PLC0415
    from kvgate.load.result import result_json  # noqa: PLC0415
    from kvgate.load.tables import print_result  # noqa: PLC0415

    if as_json:
        typer.echo(json.dumps(result_json(result), indent=2))
    else:
        print_result(result, sys.stdout)
    if html is not None:
        write("--html", html, page(result))
    if result.interrupted:
        return EXIT_INTERRUPTED
    return 0 if result.completed else EXIT_NOTHING_COMPLETED
