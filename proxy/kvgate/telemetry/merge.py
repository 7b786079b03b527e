"""One metrics page of the pages of several processes.

Each process exports its own page; they are read, merged by the rule of each metric (`catalogue.Across`), and
printed as one, with the same names and labels. Prometheus takes a counter that became smaller for one that began
anew, and would add all of it once more; so what a process counted stays counted when another takes its place,
and a process that does not answer for a moment is counted as it was last seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

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

Key = tuple[str, tuple[tuple[str, str], ...]]
"""Of a sample: its name, and its labels in order."""


@dataclass(slots=True)
class _Values:
    """One family of one page."""

    type: str
    documentation: str
    samples: dict[Key, float] = field(default_factory=dict)


_Page = dict[str, _Values]


class MergedPages(CollectorRegistry):
    """A registry to print from; `take` each page before. Not for several threads."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """`names` are the places that processes fill one after the other; their order is that of preference."""
        super().__init__()
        self._names = names
        self._pages: dict[str, _Page] = {}
        self._silent: set[str] = set()
        self._gone: _Page = {}
        """What was counted by processes that have been replaced."""

    def take(self, name: str, text: str) -> None:
        """The page of the process that fills a place now. Raises ValueError for text that is no page."""
        page = _read(text)
        last = self._pages.get(name)
        if last is not None and _started(last) != _started(page):
            _add(self._gone, (family for family in last.items() if family[1].type in ADDING))
        self._pages[name] = page
        self._silent.discard(name)

    def miss(self, name: str) -> None:
        """The process in that place does not answer: its counters count on, its gauges are not known now."""
        self._silent.add(name)

    def collect(self) -> Iterator[Family]:
        known = [name for name in self._names if name in self._pages]
        telling = [name for name in known if name not in self._silent]
        pages = [self._pages[name] for name in (*telling, *(name for name in known if name in self._silent))]
        for name in dict.fromkeys(name for page in pages for name in page):
            values = [page[name] for page in pages if name in page]
            now = [page[name] for page in pages[: len(telling)] if name in page]
            counted = values[0].type in ADDING
            if counted or now:
                yield _family(name, self._merged(name, values if counted else now))

    def _merged(self, name: str, values: list[_Values]) -> _Values:
        merged = _Values(values[0].type, values[0].documentation)
        rule = RULES.get(name, Across.SUM)
        if rule is Across.ONCE:
            return values[0]
        if rule is Across.SUM and name in self._gone:
            values = [*values, self._gone[name]]
        for key in dict.fromkeys(key for one in values for key in one.samples):
            numbers = [one.samples[key] for one in values if key in one.samples]
            merged.samples[key] = sum(numbers) if rule is Across.SUM else max(numbers)
        return merged


def _read(text: str) -> _Page:
    page: _Page = {}
    for family in text_string_to_metric_families(text):
        values = page.setdefault(family.name, _Values(family.type, family.documentation))
        for sample in family.samples:
            values.samples[sample.name, tuple(sample.labels.items())] = sample.value
    return page


def _started(page: _Page) -> float | None:
    values = page.get(STARTED)
    return None if values is None else next(iter(values.samples.values()), None)


def _add(total: _Page, families: Iterable[tuple[str, _Values]]) -> None:
    for name, values in families:
        known = total.setdefault(name, _Values(values.type, values.documentation))
        for key, number in values.samples.items():
            known.samples[key] = known.samples.get(key, 0.0) + number


def _family(name: str, values: _Values) -> Family:
    family = Family(name, values.documentation, values.type)
    for (sample, labels), number in values.samples.items():
        family.add_sample(sample, dict(labels), number)
    return family
