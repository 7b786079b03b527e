"""The comparison, as one command from the repository's root.

    python -m bench.admission                 the quick form, under a minute
    python -m bench.admission --full          all workloads, loads, limits, three seeds; about half an hour
    python -m bench.admission --only main,change --profiles reason --seeds 1,2

Tables go to standard output, progress to standard error. `--json FILE` keeps every number, `--plot FILE` draws
goodput over load (needs matplotlib). Seeds are fixed: the same command prints the same tables.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from bench.admission.calibration import calibration
from bench.admission.change import VARIANTS, Change, Phase, change
from bench.admission.report import ROW, mean_of, plot, table
from bench.admission.runs import FULL, POLICIES, QUICK, Cell, Times, capacity, run
from bench.admission.score import Score
from bench.admission.workload import PROFILES, Limit

LOADS = (0.7, 1.0, 1.3, 1.6, 2.0)
QUICK_POLICIES = ("direct+timeout", "cap", "worst", "worst-2048", "forecast", "oracle")
SECTIONS = ("main", "loads", "limits", "fair", "change", "calibration")
Row = list[object]


class Bench:
    """Runs the sections that were asked for, one cell at a time."""

    def __init__(self, profiles: list[str], seeds: list[int], times: Times, policies: Iterable[str]) -> None:
        self.profiles, self.seeds, self.times, self.policies = profiles, seeds, times, list(policies)
        self.kept: list[dict[str, object]] = []
        self.started_s = time.monotonic()

    def main(self) -> None:
        """All policies at 1.3 times the capacity, nothing said of the length."""
        for name in self.profiles:
            found = [capacity(name, seed, self.times) for seed in self.seeds]
            print(
                f"\n## {name}: load 1.3, max_tokens unset; capacity {_list(c.requests_per_s for c in found)} requests/s"
            )
            self._compare([(policy, Cell(name, policy)) for policy in self.policies])

    def loads(self) -> None:
        """Goodput over load."""
        for name in self.profiles:
            print(f"\n## {name}: goodput per second over load")
            rows: list[Row] = []
            for policy in self.policies:
                scores = [self._mean(Cell(name, policy, load)) for load in LOADS]
                rows.append([policy, *(f"{found.goodput_per_s:.2f}" for found in scores)])
            print(table(["policy", *map(str, LOADS)], rows))

    def limits(self) -> None:
        """What clients say of the length, and what it changes."""
        for name in self.profiles:
            print(f"\n## {name}: load 1.3, by what is declared")
            cells = [
                (f"{policy} {limit}", Cell(name, policy, limit=limit))
                for policy in ("worst", "forecast", "oracle")
                for limit in Limit
            ]
            self._compare(cells)

    def fair(self) -> None:
        """Twice the capacity: what becomes of the well-behaved tenants."""
        for name in self.profiles:
            print(f"\n## {name}: load 2.0, three tenants within their share and a noisy one")
            cells = [
                ("direct+timeout", Cell(name, "direct+timeout", 2.0)),
                ("forecast, one line", Cell(name, "forecast", 2.0)),
            ]
            self._compare([*cells, ("forecast, fair", Cell(name, "forecast", 2.0, fair=True))])

    def change(self) -> None:
        """Every output three times longer from one second to the next."""
        for name in self.profiles:
            print(
                f"\n## {name}: load 1.3, outputs three times longer; preemptions per 1000 arrivals (let through)"
            )
            rows: list[Row] = []
            for variant in VARIANTS:
                found = [self._changed(name, variant, seed) for seed in self.seeds]
                noticed = [c.noticed_after_s for c in found if c.noticed_after_s is not None]
                phases = [
                    [c.through for c in found],
                    [c.relearning for c in found],
                    [c.afterwards for c in found],
                ]
                rows.append(
                    [
                        variant,
                        *map(_phases, phases),
                        sum(p.good for c in found for p in c.phases),
                        _list(noticed),
                    ]
                )
            print(table(["measures", "next 1000", "1000 more", "after that", "good", "noticed, s"], rows))

    def calibration(self) -> None:
        """How often the real length is above the forecast's quantile; (1 − q) is right."""
        print("\n## calibration: part of 5000 requests longer than the forecast's quantile")
        rows = [[name, *(f"{100 * part:.1f} %" for part in calibration(name, 1))] for name in PROFILES]
        print(table(["profile", "q = 0.5", "0.9", "0.99"], rows))

    def _compare(self, cells: list[tuple[str, Cell]]) -> None:
        print(table(["policy", *ROW], [[label, *self._mean(cell).cells] for label, cell in cells]))

    def _mean(self, cell: Cell) -> Score:
        return mean_of([self._run(cell, seed) for seed in self.seeds])

    def _run(self, cell: Cell, seed: int) -> Score:
        cell = replace(cell, seed=seed, times=self.times)
        self._progress(f"{cell.profile} {cell.policy} load {cell.load} {cell.limit} seed {seed}")
        found = run(cell)
        self.kept.append({**asdict(cell), **asdict(found)})
        return found

    def _changed(self, name: str, variant: str, seed: int) -> Change:
        self._progress(f"{name} change {variant} seed {seed}")
        found = change(name, variant, seed, self.times)
        self.kept.append({"profile": name, "change": variant, "seed": seed, **asdict(found)})
        return found

    def _progress(self, what: str) -> None:
        print(f"[{time.monotonic() - self.started_s:5.0f} s] {what}", file=sys.stderr, flush=True)


def _phases(phases: list[Phase]) -> str:
    preempted = sum(phase.preempted for phase in phases)
    arrivals, passed = sum(p.arrivals for p in phases), sum(p.let_through for p in phases)
    return f"{1000 * preempted / arrivals:.1f} ({1000 * preempted / max(passed, 1):.0f})"


def _list(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def arguments_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read and checked before anything runs. Ends the process, saying why, where they are no good."""
    parser = argparse.ArgumentParser(prog="python -m bench.admission", description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="every section, three seeds, long runs")
    parser.add_argument(
        "--only", type=_sections, default=(), metavar="SECTIONS", help=f"of {','.join(SECTIONS)}"
    )
    parser.add_argument(
        "--profiles", type=_profiles, default=list(PROFILES), metavar="NAMES", help=f"of {','.join(PROFILES)}"
    )
    parser.add_argument(
        "--seeds", type=_seeds, default=[], metavar="N,N", help="default: 1; 1,2,3 with --full"
    )
    parser.add_argument(
        "--json", type=_file, metavar="FILE", help="every number of every run, written at the end"
    )
    parser.add_argument(
        "--plot", type=_file, metavar="FILE", help="goodput over load, of the section loads; needs matplotlib"
    )
    return parser.parse_args(arguments)


def main() -> None:
    options = arguments_of()
    bench = Bench(
        options.profiles,
        options.seeds or ([1, 2, 3] if options.full else [1]),
        FULL if options.full else QUICK,
        POLICIES if options.full else QUICK_POLICIES,
    )
    for section in options.only or (SECTIONS if options.full else ("main",)):
        getattr(bench, section)()
    if options.json:
        options.json.write_text(json.dumps(bench.kept, indent=1))
    if options.plot:
        plot(bench.kept, options.plot)


def _sections(text: str) -> list[str]:
    return _of(text, SECTIONS)


def _profiles(text: str) -> list[str]:
    return _of(text, tuple(PROFILES))


def _of(text: str, allowed: Sequence[str]) -> list[str]:
    for name in text.split(","):
        if name not in allowed:
            raise argparse.ArgumentTypeError(f"no {name!r} here: there are {', '.join(allowed)}")
    return text.split(",")


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers, such as 1,2,3") from None


def _file(text: str) -> Path:
    """One that can be written: half an hour later is too late to find out."""
    path = Path(text)
    existed = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be written: {error.strerror}") from error
    if not existed:
        path.unlink()
    return path


if __name__ == "__main__":
    main()
