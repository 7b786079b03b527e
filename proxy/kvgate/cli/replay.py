"""`kvgate replay`: what other policies would have made of the same traffic."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvgate.cli.load import SloItl, SloTtft
from kvgate.cli.load_words import check_writable, read_word
from kvgate.cli.options import option as _option
from kvgate.errors import ConfigError

if TYPE_CHECKING:
    from kvgate.load.score import Objective
    from kvgate.replay import Choice, Hardware, Plan, Replayed, Workload

POLICIES, TRAFFIC, ENGINES, ANSWER = "The policies", "The traffic", "The engines", "The answer"
POLICIES_MAX = 8
"""Columns that a table has room for."""
SPEED_LEAST, SPEED_MAX = 0.001, 1000.0
EXIT_INTERRUPTED = 130


def replay(
    source: Annotated[
        str,
        typer.Argument(
            metavar="TRAFFIC",
            help="A request log, a public trace, synthetic:NAME, or a workload in FILE.yaml.",
            show_default=False,
        ),
    ],
    policy: Annotated[
        list[str] | None,
        _option(
            "--policy",
            POLICIES,
            "A policy file, direct (no admission control), default (forecasts), or guaranteed (peaks). Once for each. "
            "Default: direct and default",
            "FILE",
        ),
    ] = None,
    pool: Annotated[
        str | None, _option("--pool", POLICIES, "The pool to replay, of the policies and of the log.", "NAME")
    ] = None,
    tenant: Annotated[
        list[str] | None,
        _option("--tenant", TRAFFIC, "Deal the requests out to these instead. Once for each.", "NAME:SHARE"),
    ] = None,
    duration: Annotated[
        str | None, _option("--duration", TRAFFIC, "Only so much of it, such as 2h, from its start.", "TIME")
    ] = None,
    speed: Annotated[
        float, _option("--speed", TRAFFIC, "So many times as fast do they come. Default: 1", "TIMES")
    ] = 1.0,
    seed: Annotated[
        int, _option("--seed", TRAFFIC, "Another one draws other traffic. Default: 1", "N", least=0)
    ] = 1,
    engines: Annotated[
        int | None, _option("--engines", ENGINES, "How many. Default: the policy's backends, or 4", "N", 1)
    ] = None,
    num_gpu_blocks: Annotated[
        int | None, _option("--num-gpu-blocks", ENGINES, "KV blocks of each, as vLLM counts them.", "N", 2)
    ] = None,
    block_size: Annotated[
        int | None, _option("--block-size", ENGINES, "Tokens of a KV block.", "N", 1)
    ] = None,
    max_model_len: Annotated[
        int | None, _option("--max-model-len", ENGINES, "The window in tokens.", "N", 2)
    ] = None,
    max_num_seqs: Annotated[
        int | None, _option("--max-num-seqs", ENGINES, "Sequences that run at once.", "N", 1)
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, _option("--max-num-batched-tokens", ENGINES, "Tokens of a step.", "N", 2)
    ] = None,
    profile: Annotated[
        str | None,
        _option(
            "--profile", ENGINES, "How long a step takes: a name, or FILE.yaml of calibrate.", "NAME|FILE"
        ),
    ] = None,
    exact: Annotated[
        bool,
        _option("--exact", ENGINES, "Do every step of the engines: the same answer, many times slower."),
    ] = False,
    slo_ttft: SloTtft = None,
    slo_itl: SloItl = None,
    as_json: Annotated[bool, _option("--json", ANSWER, "Print the answer as JSON.")] = False,
    plot: Annotated[
        Path | None, _option("--plot", ANSWER, "Draw it over time: .png or .svg.", "FILE")
    ] = None,
) -> int:
    """What other policies would have made of the same traffic: the same code in virtual time, a day in a minute."""
    from kvgate.planner.plot import plot_format  # noqa: PLC0415  rich and more, which no other command waits for
    from kvgate.replay import Choice, Hardware, open_workload  # noqa: PLC0415

    if plot is not None:
        plot_format(plot)
        check_writable("--plot", plot)
    hardware = Hardware(
        engines, num_gpu_blocks, block_size, max_model_len, max_num_seqs, max_num_batched_tokens, profile
    )
    choice = Choice(seed, pool, _tenants(tenant), _seconds("--duration", duration), _speed(speed))
    plans = _plans(policy, hardware, pool)
    objective = _objective(slo_ttft, slo_itl)
    try:
        workload = open_workload(source, choice)
        found = _replayed(workload, plans, objective, exact=exact)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return _report(workload, found, objective, choice, as_json=as_json, plot=plot)


def _plans(policy: list[str] | None, hardware: Hardware, pool: str | None) -> list[Plan]:
    from kvgate.replay import make_plans  # noqa: PLC0415
    from kvgate.replay.plan import DEFAULT, DIRECT  # noqa: PLC0415

    chosen = policy or [DIRECT, DEFAULT]
    if len(chosen) > POLICIES_MAX:
        raise ConfigError(f"--policy: at most {POLICIES_MAX} side by side; there are {len(chosen)}")
    for name in chosen:
        _check_is_one(name)
    return make_plans(chosen, hardware, pool)


def _check_is_one(policy: str) -> None:
    """Raises ConfigError for what is neither a file nor a policy that needs none."""
    from kvgate.replay.plan import BUILT_IN  # noqa: PLC0415

    if policy not in BUILT_IN and not os.path.lexists(policy):
        raise ConfigError(
            f"--policy: {policy!r} is not allowed; allowed: a policy file (there is no {policy}), direct (no admission "
            "control), default (forecasts), or guaranteed (peaks)"
        )


def _replayed(workload: Workload, plans: list[Plan], objective: Objective, *, exact: bool) -> list[Replayed]:
    from kvgate.replay import replay as replayed  # noqa: PLC0415
    from kvgate.replay.progress import progress_bar  # noqa: PLC0415

    with progress_bar() as progress:
        return replayed(workload, plans, objective, exact=exact, progress=progress)


def _report(
    workload: Workload,
    found: list[Replayed],
    objective: Objective,
    choice: Choice,
    *,
    as_json: bool,
    plot: Path | None,
) -> int:
    from kvgate.replay import replayed_json  # noqa: PLC0415
    from kvgate.replay.plot import write_plot  # noqa: PLC0415
    from kvgate.replay.tables import print_replayed  # noqa: PLC0415

    if plot is not None:
        write_plot(found, plot)
    if as_json:
        answer = {
            "traffic": workload.name,
            "seed": choice.seed,
            "objective": {"ttft_s": objective.ttft_s_max, "itl_s": objective.itl_s_max},
            "policies": [replayed_json(one) for one in found],
            "notes": list(workload.notes),
        }
        typer.echo(json.dumps(answer, indent=2))
    else:
        print_replayed(workload, found, objective, sys.stdout)
    return 0


def _objective(slo_ttft: str | None, slo_itl: str | None) -> Objective:
    from kvgate.load.score import Objective  # noqa: PLC0415

    defaults = Objective()
    return Objective(
        _seconds("--slo-ttft", slo_ttft) or defaults.ttft_s_max,
        _seconds("--slo-itl", slo_itl) or defaults.itl_s_max,
    )


def _seconds(option: str, text: str | None) -> float | None:
    from kvgate.config.units import duration_s  # noqa: PLC0415

    return None if text is None else read_word(option, text, duration_s)


def _speed(speed: float) -> float:
    if not SPEED_LEAST <= speed <= SPEED_MAX:
        raise ConfigError(f"--speed: {speed:g} is not allowed; allowed: {SPEED_LEAST:g} to {SPEED_MAX:g}")
    return speed


def _tenants(given: list[str] | None) -> dict[str, float] | None:
    """Each with its share. Raises ConfigError."""
    if not given:
        return None
    tenants: dict[str, float] = {}
    for text in given:
        name, _, share = text.rpartition(":")
        try:
            number = float(share)
        except ValueError:
            number = 0.0
        if not name or name in tenants or not 0 < number < 1e6:
            raise ConfigError(
                f"--tenant: {text!r} is not allowed; allowed: NAME:SHARE, such as chat:3, each name once"
            )
        tenants[name] = number
    return tenants
