"""One metrics page of the pages of several processes.

Each process exports its own page; they are read, merged by the rule of each metric (`catalogue.Across`), and
printed as one, with the same names and labels. Prometheus takes a counter that became smaller for one that began
anew, and would add all of it once more; so what a process counted stays counted when another takes its place,
and a process that does not answer for a moment is counted as it was last seen. Of exemplars, which pages in
OpenMetrics have, each bucket keeps the latest.

Pages are merged as text: what stands before a value is its key, for all processes print it the same way. Taking the
labels apart and putting them together again, as the library's parser and printer do, takes ten times as long.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.utils import floatToGoString

from kvgate.telemetry.catalogue import METRICS, Across

STARTED = "process_start_time_seconds"
"""Tells the processes that follow each other in one place apart."""
ADDING = frozenset({"counter", "histogram"})
"""Types whose numbers only grow during the life of a process."""

RULES: dict[str, Across] = {
    **{metric.name.removesuffix("_total"): metric.across for metric in METRICS},
    STARTED: Across.LARGEST,
    "process_max_fds": Across.ONCE,
}
"""By family. What is not here is added up, as CPU time and memory are."""

_EXEMPLAR = " # {"
_WITH_EXEMPLAR = re.compile(r'([^\s{]+(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?) (\S+)(?: # (.*))?')
"""Key, value, exemplar. A label's value may look like the beginning of an exemplar."""


@dataclass(slots=True)
class _Family:
    """One family of one page."""

    type: str = "unknown"
    documentation: str = ""
    """As it is printed: escaped."""
    samples: dict[str, float] = field(default_factory=dict[str, float])
    """By what is before the value: name and labels."""
    exemplars: dict[str, str] = field(default_factory=dict[str, str])


_Page = dict[str, _Family]


class MergedPages:
    """`take` or `miss` the page of each process, then `render`. Not for several threads."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """`names` are the places that processes fill one after the other; their order is that of preference."""
        self._names = names
        self._pages: dict[str, _Page] = {}
        self._silent: set[str] = set()
        self._gone: _Page = {}
        """What was counted by processes that have been replaced."""

    def take(self, name: str, text: str) -> None:
        """The page of the process that fills a place now, as Prometheus text or OpenMetrics.

        Raises ValueError for text that is no page.
        """
        page = _read(text)
        last = self._pages.get(name)
        if last is not None and _started(last) != _started(page):
            _add(self._gone, (family for family in last.items() if family[1].type in ADDING))
        self._pages[name] = page
        self._silent.discard(name)

    def miss(self, name: str) -> None:
        """The process in that place does not answer: its counters count on, its gauges are not known now."""
        self._silent.add(name)

    def render(self, *, openmetrics: bool = False) -> bytes:
        """The one page, as OpenMetrics or Prometheus text."""
        lines = [line for name, family in self._merged() for line in _printed(name, family, openmetrics)]
        end = ["# EOF"] if openmetrics else []
        return ("\n".join([*lines, *end]) + "\n").encode()

    def _merged(self) -> Iterator[tuple[str, _Family]]:
        known = [name for name in self._names if name in self._pages]
        telling = [name for name in known if name not in self._silent]
        pages = [self._pages[name] for name in (*telling, *(name for name in known if name in self._silent))]
        for name in dict.fromkeys(name for page in pages for name in page):
            families = [page[name] for page in pages if name in page]
            now = [page[name] for page in pages[: len(telling)] if name in page]
            counted = families[0].type in ADDING
            if counted or now:
                yield name, self._of_one_name(name, families if counted else now)

    def _of_one_name(self, name: str, families: list[_Family]) -> _Family:
        rule = RULES.get(name, Across.SUM)
        if rule is Across.ONCE:
            return families[0]
        if rule is Across.SUM and name in self._gone:
            families = [*families, self._gone[name]]
        merged = _Family(families[0].type, families[0].documentation)
        for one in families:
            _take_in(merged.samples, one.samples, rule)
            for key, exemplar in one.exemplars.items():
                merged.exemplars[key] = max(exemplar, merged.exemplars.get(key, exemplar), key=_time_of)
        return merged


def _take_in(total: dict[str, float], samples: dict[str, float], rule: Across) -> None:
    for key, number in samples.items():
        known = total.get(key)
        if known is None:
            total[key] = number
        else:
            total[key] = known + number if rule is Across.SUM else max(known, number)


def _read(text: str) -> _Page:
    page: _Page = {}
    name, family = "", _Family()
    for line in text.split("\n"):  # a name may have what Python takes for the end of a line
        if line.startswith(("# HELP ", "# TYPE ")):
            name, family = _described(line, page)
        elif line and not line.startswith("#"):
            key, number, exemplar = _sample(line)
            if not key.startswith(name):  # of a family that nobody described
                name = key.partition("{")[0]
                family = page.setdefault(name, _Family())
            family.samples[key] = float(number)
            if exemplar:
                family.exemplars[key] = exemplar
    return page


def _described(line: str, page: _Page) -> tuple[str, _Family]:
    """The family that the lines after this one belong to."""
    _, word, called, rest = [*line.split(" ", 3), ""][:4]
    name = called.removesuffix("_total")
    family = page.setdefault(name, _Family())
    if word == "HELP":
        family.documentation = rest
    else:
        family.type = rest
    return name, family


def _sample(line: str) -> tuple[str, str, str]:
    if _EXEMPLAR not in line:
        key, _, number = line.rpartition(" ")
        return key, number, ""
    match = _WITH_EXEMPLAR.fullmatch(line)
    if match is None:
        raise ValueError(f"no sample: {line[:200]}")
    return match[1], match[2], match[3] or ""


def _time_of(exemplar: str) -> float:
    """Unix time; it is the last part of an exemplar."""
    return float(exemplar.rpartition(" ")[2])


def _started(page: _Page) -> float | None:
    family = page.get(STARTED)
    return None if family is None else next(iter(family.samples.values()), None)


def _add(total: _Page, families: Iterable[tuple[str, _Family]]) -> None:
    for name, family in families:
        known = total.setdefault(name, _Family(family.type, family.documentation))
        _take_in(known.samples, family.samples, Across.SUM)


def _printed(name: str, family: _Family, openmetrics: bool) -> Iterator[str]:
    """The two formats differ in a counter's name above its samples, and in exemplars."""
    called = name if openmetrics or family.type != "counter" else f"{name}_total"
    yield f"# HELP {called} {family.documentation}"
    yield f"# TYPE {called} {family.type}"
    exemplars = family.exemplars if openmetrics else {}
    for key, number in family.samples.items():
        exemplar = exemplars.get(key)
        yield f"{key} {_shown(number)}" + (f" # {exemplar}" if exemplar else "")


def _shown(number: float) -> str:
    """As the processes print it."""
    return str(floatToGoString(number))  # type: ignore[no-untyped-call]
