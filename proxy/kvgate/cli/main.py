"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from kvgate.cli.calibrate import calibrate
from kvgate.cli.check import check
from kvgate.cli.engines import engines_app
from kvgate.cli.group import LineErrors
from kvgate.cli.ledger import ledger_app
from kvgate.cli.load import load
from kvgate.cli.options import ENVIRONMENT
from kvgate.cli.plan import plan
from kvgate.cli.policy import policy_app
from kvgate.cli.queue import queue
from kvgate.cli.replay import replay
from kvgate.cli.serve import serve
from kvgate.cli.tenants import tenants_app
from kvgate.cli.tools import demo, sim_engine, version
from kvgate.cli.traffic import traffic

app = typer.Typer(
    cls=LineErrors,
    help="Admission control for pools of vLLM servers: KV cache is reserved before a request is forwarded, "
    "and what does not fit waits in a queue.",
    epilog="Example: kvgate serve --backend http://127.0.0.1:8000",
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if show_version:
        raise typer.Exit(version())
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _example(*lines: str) -> str:
    return "\n\n".join(("Example: " + lines[0], *lines[1:]))


app.command(
    epilog=_example("kvgate serve --backend http://gpu-a:8000 --backend http://gpu-b:8000", ENVIRONMENT)
)(serve)
app.command(epilog=_example("kvgate check --backend http://gpu-a:8000 --json", ENVIRONMENT))(check)
app.add_typer(policy_app, name="policy")
app.add_typer(ledger_app, name="ledger")
app.add_typer(tenants_app, name="tenants")
app.add_typer(engines_app, name="engines")
app.command(epilog=_example("kvgate queue --json"))(queue)
app.command(
    epilog=_example("kvgate sim-engine --blocks 121 --block-size 32 --max-model-len 2048 --max-num-seqs 256")
)(sim_engine)
app.command(epilog=_example("kvgate demo --seconds 30"))(demo)
app.command(
    epilog=_example(
        "kvgate plan --layers 32 --kv-heads 32 --head-dim 128 --gpu-memory 80GiB --gpu-memory-utilization 0.85 "
        "--weights 16GiB --max-model-len 8192 --target 8x"
    )
)(plan)
app.command(
    epilog=_example(
        "kvgate load http://127.0.0.1:8080 --rate 5 --prompt lognormal:400:4000 --output uniform:50:500 --duration 60s"
    )
)(load)
app.command(epilog=_example("kvgate calibrate http://gpu-a:8000 --out gpu-a.yaml"))(calibrate)
app.command(epilog=_example("kvgate traffic requests.jsonl --max-model-len 4096"))(traffic)
app.command(
    epilog=_example("kvgate replay requests.jsonl --policy policy.yaml --policy mine.yaml --plot replay.svg")
)(replay)
app.command(epilog=_example("kvgate version --json"))(version)


def main() -> None:
    """The entry point: run the command of the arguments and exit."""
    app(prog_name="kvgate")
