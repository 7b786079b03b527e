"""The fit for people, and as JSON: the terms, and how far off they are for each observation."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from kvgate.load.fit import Fit

WIDTH_WITHOUT_TERMINAL = 120
ROUGH = 0.25
"""A fit whose typical error is larger says little about the engine."""


def print_fit(fit: Fit, file: TextIO) -> None:
    width = None if file.isatty() else WIDTH_WITHOUT_TERMINAL
    console = Console(file=file, highlight=False, width=width, markup=False, emoji=False)
    console.print("The time of a step, milliseconds", style="bold")
    for name, seconds in terms(fit).items():
        console.print(f"  {name:<44}{seconds * 1000:.4g}")
    console.print(f"\n  beside the engine, for a request            {fit.request_s * 1000:.4g}")
    table = Table(box=None, pad_edge=True, padding=(0, 1))
    table.add_column("  observation")
    for name in ("measured, ms", "fitted, ms", "off"):
        table.add_column(name, justify="right")
    for seen in fit.observations:
        measured, fitted = f"{seen.seconds * 1000:.2f}", f"{fit.predicted_s(seen) * 1000:.2f}"
        table.add_row(f"  {seen.what}", measured, fitted, f"{fit.off(seen):+.1%}")
    console.print("\nHow well it fits", style="bold")
    console.print(table)
    console.print(f"\nHalf of them are within {fit.off_median:.1%}, all within {fit.off_max:.1%}.")
    if fit.off_median > ROUGH:
        console.print(
            "That is rough: was something else running, there or here? Measure again.", style="bold"
        )


def terms(fit: Fit) -> dict[str, float]:
    return {
        "each step": fit.step_s,
        "and for each sequence that generates": fit.decode_s_per_seq,
        "and for each token in the KV cache": fit.kv_s_per_token,
        "and for each prompt token": fit.prefill_s_per_token,
    }


def fit_json(fit: Fit) -> dict[str, object]:
    """For machines; milliseconds as in a profile."""
    return {
        "step_ms": fit.step_s * 1000,
        "decode_ms_per_seq": fit.decode_s_per_seq * 1000,
        "kv_ms_per_token": fit.kv_s_per_token * 1000,
        "prefill_ms_per_token": fit.prefill_s_per_token * 1000,
        "request_ms": fit.request_s * 1000,
        "off_median": round(fit.off_median, 4),
        "off_max": round(fit.off_max, 4),
        "observations": [
            {
                "what": seen.what,
                "decoding": seen.decoding,
                "kv_tokens": round(seen.kv_tokens),
                "prefill_tokens": seen.prefill_tokens,
                "measured_ms": round(seen.seconds * 1000, 3),
                "fitted_ms": round(fit.predicted_s(seen) * 1000, 3),
            }
            for seen in fit.observations
        ],
    }
