"""Where the requests come from: a request log, a public trace, or made-up traffic; each can be replayed many times."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from kvgate.errors import ConfigError
from kvgate.replay.offered import Offered, Taken, take
from kvgate.replay.synthetic_words import is_synthetic, read_synthetic
from kvgate.traffic import Format, Reading, format_of, read_requests

if TYPE_CHECKING:
    from kvgate.telemetry.request_line import LoggedRequest

SPAN_S_MAX = 366 * 86_400.0
"""From the first arrival to the last: a time that is further away is a slip in the file."""
REQUESTS_MAX = 1_000_000
"""Of a file, kept in memory: some 700 bytes each while it is read, then 200."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What of the source is taken, and how."""

    seed: int = 1
    pool: str | None = None
    """Of a log: requests of this pool only."""
    tenants: Mapping[str, float] | None = None
    """Deal the requests out to these, by their shares, whoever sent them."""
    duration_s: float | None = None
    """Only so much of it, from its beginning."""
    speed: float = 1.0
    """So many times as fast do the requests come."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order of their arrival."""

    name: str
    offered: Callable[[], Iterable[Offered]]
    """All of them, from the first; the same each time."""
    span_s: float
    """No arrival is later."""
    tenants: tuple[str, ...]
    notes: tuple[str, ...] = ()


def open_workload(source: str, choice: Choice) -> Workload:
    """A file, or a word as `synthetic` has them. Raises ConfigError."""
    return _synthetic(source, choice) if is_synthetic(source) else _of_file(Path(source), choice)


def _synthetic(source: str, choice: Choice) -> Workload:
    if choice.tenants is not None or choice.pool is not None:
        raise ConfigError(f"--tenant, --pool: {source} says itself whose its requests are")
    made = read_synthetic(source)

    def offered() -> Iterator[Offered]:
        return _faster(_first(made.offered(choice.seed), choice.duration_s), choice.speed)

    span_s = min(made.span_s, choice.duration_s or made.span_s) / choice.speed
    _check_span(source, span_s)
    return Workload(source, offered, span_s, tuple(made.tenants))


def _of_file(path: Path, choice: Choice) -> Workload:
    reading = Reading()
    is_log = format_of(path) is Format.LOG
    found: Iterator[LoggedRequest] = (
        one for one in read_requests(path, reading) if choice.pool is None or one.pool == choice.pool
    )
    if not is_log and choice.duration_s is not None:
        found = _beginning(found, choice.duration_s)
    taken = take(islice(found, REQUESTS_MAX), seed=choice.seed, is_log=is_log)
    reading.check(path)
    if not taken.requests:
        where = f" of pool {choice.pool!r}" if choice.pool is not None else ""
        raise ConfigError(f"{path}: no request{where} in it that could be replayed{_why(path, reading)}")
    notes = tuple(_notes(taken, reading))
    requests = list(_faster(_first(taken.requests, choice.duration_s), choice.speed))
    _check_span(str(path), requests[-1].arrived_s)
    if choice.tenants is not None:
        requests = list(_dealt(requests, choice.tenants, choice.seed))
    names = tuple(dict.fromkeys(one.tenant for one in requests))
    return Workload(str(path), lambda: requests, requests[-1].arrived_s, names, notes)


def _check_span(source: str, span_s: float) -> None:
    """Raises ConfigError for what would take as good as for ever."""
    if span_s > SPAN_S_MAX:
        raise ConfigError(
            f"{source}: its requests come over {span_s / 86_400:,.0f} days; allowed: {SPAN_S_MAX / 86_400:.0f}. "
            "Take the beginning of it with --duration, or make it faster with --speed"
        )


def _why(path: Path, reading: Reading) -> str:
    return f"\n{path}: {reading.shown[0]}" if reading.shown else ""


def _beginning(found: Iterable[LoggedRequest], duration_s: float) -> Iterator[LoggedRequest]:
    """Of a trace, which is nearly in order: what is much later need not be kept."""
    first_s: float | None = None
    for one in found:
        first_s = one.arrived if first_s is None else min(first_s, one.arrived)
        if one.arrived - first_s <= duration_s:
            yield one


def _first(offered: Iterable[Offered], duration_s: float | None) -> Iterable[Offered]:
    if duration_s is None:
        return offered
    return takewhile(lambda one: one.arrived_s <= duration_s, offered)


def _faster(offered: Iterable[Offered], speed: float) -> Iterator[Offered]:
    return iter(offered) if speed == 1 else (replace(one, arrived_s=one.arrived_s / speed) for one in offered)


def _dealt(offered: Iterable[Offered], tenants: Mapping[str, float], seed: int) -> Iterator[Offered]:
    source = random.Random(f"{seed} tenants")  # noqa: S311  so that it can be repeated
    names, shares = list(tenants), list(tenants.values())
    for one in offered:
        yield replace(one, tenant=source.choices(names, shares)[0])


def _notes(taken: Taken, reading: Reading) -> Iterator[str]:
    if reading.bad:
        yield f"{reading.bad:,} lines could not be read and were skipped: {'; '.join(reading.shown)}."
    if reading.failed:
        yield f"{reading.failed:,} requests of the trace had no answer and were left out."
    if taken.left_out:
        yield f"{taken.left_out:,} requests were left out: any policy would refuse them, or nobody knows their prompt."
    if taken.guessed:
        yield (
            f"Of {taken.guessed:,} requests the answer was not seen to its end; its length was drawn from those of "
            "others."
        )
    if taken.out_of_order:
        yield f"{taken.out_of_order:,} requests stood below later ones; they were put in order."
    if len(taken.requests) + taken.left_out >= REQUESTS_MAX:
        yield f"Only the first {REQUESTS_MAX:,} requests of the file were taken."
