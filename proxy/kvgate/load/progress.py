"""A progress bar on standard error, where that is a terminal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from kvgate.load.trial import Trial


@contextmanager
def progress_bar(requests: int | None) -> Generator[Callable[[Trial], None]]:
    """What it gives is called with the trial that runs, again and again. The bar is the larger of what has been
    sent and of the time that has passed.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        tasks: dict[str, int] = {}

        def show(trial: Trial) -> None:
            if trial.name not in tasks:
                tasks[trial.name] = int(bar.add_task(trial.name, total=1.0, counts=""))
            counts = f"{trial.ended:,} ended, {trial.in_flight:,} in flight"
            bar.update(tasks[trial.name], completed=done(trial, requests), counts=counts)  # type: ignore[arg-type]

        yield show


def done(trial: Trial, requests: int | None) -> float:
    """How much of it is over, 0 to 1."""
    by_time = trial.elapsed_s / trial.bounds.duration_s
    by_count = trial.ended / requests if requests else 0.0
    return min(max(by_time, by_count), 1.0)
