"""Policies beside each other as a picture: who waits over time, waits, and the cache. Needs matplotlib, an extra."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvgate.planner.plot import picture

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvgate.replay.score import Replayed


def write_plot(found: Sequence[Replayed], path: Path) -> None:
    """Draw it. Raises ConfigError when matplotlib isn't there or the file can't be written."""
    with picture(path, 10, 9) as figure:
        waiting, cache, waits = figure.subplots(3, 1)
        for one in found:
            waiting.plot(*_over_time(one.queued), label=one.policy)
            aside = "" if one.reserved else ": reserves nothing"  # with a line, so that colours are the same
            cache.plot(*_over_time(one.reserved), label=f"{one.policy}{aside}")
            if one.waits_s:
                shares = [number / (len(one.waits_s) - 1) for number in range(len(one.waits_s))]
                waits.plot(one.waits_s, shares, label=one.policy)
        _dress(waiting, "Requests that wait", "hours", "requests")
        _dress(cache, "KV cache that is reserved", "hours", "share")
        waits.set_xscale("symlog", linthresh=1.0)
        waits.set_xlim(left=0)
        _dress(waits, "Waits of those that were granted", "seconds", "share that waited no longer")


def _over_time(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [at_s / 3600 for at_s, _ in points], [value for _, value in points]


def _dress(axes: Any, title: str, x_label: str, y_label: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")
