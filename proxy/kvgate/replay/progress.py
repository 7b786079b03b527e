"""A progress bar on standard error, where that is a terminal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from rich.progress import TaskID


@contextmanager
def progress_bar() -> Generator[Callable[[str, float], None]]:
    """What it gives is called with a policy and how much of it is over, 0 to 1, again and again."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def show(policy: str, share: float) -> None:
            if policy not in tasks:
                tasks[policy] = bar.add_task(policy, total=1.0)
            bar.update(tasks[policy], completed=min(share, 1.0))

        yield show
