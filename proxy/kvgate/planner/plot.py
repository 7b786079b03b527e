"""The ceiling against the length of sessions, as a picture. Needs matplotlib, which is an extra."""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from kvgate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from matplotlib.figure import Figure

    from kvgate.planner.answer import Answer
    from kvgate_policies.capacity import Plan

FORMATS = (".png", ".svg")
LINES_MAX = 5
"""Curves in one picture; more can't be told apart."""
LENGTH_LEAST = 128
"""Tokens: where the axis begins."""
POINTS_PER_DOUBLING = 4
MISSING = "--plot: needs matplotlib, which is not installed: pip install 'kvgate[plots]'"


def plot_format(path: Path) -> str:
    """`png` or `svg`, by the file's name. Raises ConfigError, also where nothing can be drawn."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(
            f"--plot: {path} is not allowed; allowed: a file that ends in {' or '.join(FORMATS)}"
        )
    if find_spec("matplotlib") is None:
        raise ConfigError(MISSING)
    return path.suffix.lower().removeprefix(".")


def curves(answer: Answer) -> dict[str, list[tuple[int, int]]]:
    """For each line its points: tokens of a session, and how many such sessions vLLM fits."""
    shown = answer.ways or tuple(
        option for option in answer.options if option.factor > 1 and option.parts == 1
    )
    plans = {"as it is": answer.plan}
    plans |= {option.name: option.plan for option in shown[: LINES_MAX - 1] if option.plan is not None}
    return {
        name: [(tokens, plan.sequences(tokens)) for tokens in _lengths(plan)] for name, plan in plans.items()
    }


def _lengths(plan: Plan) -> list[int]:
    """Evenly on a logarithmic axis, the whole window last."""
    most = plan.setup.max_model_len
    steps = [round(LENGTH_LEAST * 2 ** (step / POINTS_PER_DOUBLING)) for step in range(100)]
    return [*(tokens for tokens in steps if tokens < most), most]


def write_plot(answer: Answer, path: Path) -> None:
    """Draw it. Raises ConfigError when matplotlib isn't there or the file can't be written."""
    with picture(path, 8, 5) as figure:
        axes = figure.add_subplot()
        for name, points in curves(answer).items():
            lengths, numbers = [tokens for tokens, _ in points], [number for _, number in points]
            axes.plot(lengths, numbers, marker=".", label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("tokens of a session (prompt and answer)")
        axes.set_ylabel("sessions that fit at once")
        axes.set_title("The ceiling in vLLM's blocks")
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="small")


@contextmanager
def picture(path: Path, width: float, height: float) -> Generator[Figure]:
    """A figure of so many inches to draw on, which is then written. Raises ConfigError as `write_plot`."""
    kind = plot_format(path)
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  an extra
    except ImportError as error:
        raise ConfigError(MISSING) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    yield figure
    try:
        figure.savefig(path, format=kind)
    except OSError as error:
        raise ConfigError(f"--plot: {path} cannot be written: {error.strerror}") from error
