"""The result as one HTML file: no script, nothing from the network, readable by light and by dark."""

from __future__ import annotations

from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from kvgate.load.chart import COLOURS, Chart, Line, legend, svg
from kvgate.load.tables import headline, rows, seconds, tenant_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kvgate.load.ceiling import Ceiling
    from kvgate.load.result import Result
    from kvgate.load.trial import Outcome

BUCKETS_MAX = 120
"""Points of a line over time."""

STYLE = """
:root { color-scheme: light dark; --bg: #fff; --fg: #1b1f24; --dim: #5c6570; --rule: #d9dee3;
  --c0: #0b66c3; --c1: #c2410c; --c2: #15803d; --c3: #7e22ce; --c4: #a16207; --c5: #be185d; }
@media (prefers-color-scheme: dark) { :root { --bg: #14171a; --fg: #e4e7ea; --dim: #9aa4ae; --rule: #343a41;
  --c0: #6db3f8; --c1: #fb923c; --c2: #4ade80; --c3: #c084fc; --c4: #facc15; --c5: #f472b6; } }
body { margin: 2rem auto; max-width: 76rem; padding: 0 1rem; background: var(--bg); color: var(--fg);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; } h3 { font-size: .95rem; margin: 0; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .9rem .25rem 0; text-align: right; border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child { text-align: left; } th { color: var(--dim); font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(28rem, 100%), 1fr)); gap: 1.5rem; }
figure { margin: 0; } svg { width: 100%; height: auto; } .none, .legend { color: var(--dim); margin: .2rem 0; }
.grid { stroke: var(--rule); } .tick, .axis { fill: var(--dim); font-size: 11px; text-anchor: middle; }
.tick.y { text-anchor: end; } .line { fill: none; stroke-width: 2; } .key { margin-right: 1rem; }
.key::before { content: ""; display: inline-block; width: .9rem; height: .2rem; margin-right: .35rem;
  vertical-align: middle; background: currentColor; }
""" + "".join(
    f".line.c{n} {{ stroke: var(--c{n}); }} .dot.c{n} {{ fill: var(--c{n}); }} .key.c{n} {{ color: var(--c{n}); }}\n"
    for n in range(COLOURS)
)


def page(result: Result) -> str:
    """The whole file."""
    body = [f"<h1>kvgate load</h1><p>{escape(result.what)}</p>"]
    if result.interrupted:
        body.append("<p><strong>Stopped early: this is what was seen until then.</strong></p>")
    if result.outcomes:
        body += [_comparison(result), *_tenants(result.outcomes), _figures(_run_charts(result.outcomes))]
    if result.ceiling is not None:
        body += [f"<h2>{escape(headline(result.ceiling))}</h2>", _probes(result.ceiling)]
        body.append(_figures(_ceiling_charts(result.ceiling)))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>kvgate load</title>'
        f"<style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _comparison(result: Result) -> str:
    head = ["", *(outcome.name for outcome in result.outcomes)]
    return _html_table(head, ([name, *(read(o) for o in result.outcomes)] for name, read in rows(result)))


def _tenants(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        if outcome.tenants:
            yield f"<h2>{escape(outcome.name)}, by tenant</h2>" + _html_table(
                [
                    "tenant",
                    "completed",
                    "good",
                    "to first token, p50",
                    "p99",
                    "between tokens, p99",
                    "tokens a second",
                ],
                tenant_rows(outcome),
            )


def _probes(ceiling: Ceiling) -> str:
    return _html_table(
        [
            "sessions at once",
            "held",
            "preemptions",
            "waited",
            "failed",
            "between tokens, p50",
            "p99",
            "longest gap",
        ],
        (
            [
                f"{probe.sessions:,}",
                "yes" if probe.held else "no",
                "–" if probe.outcome.preemptions is None else f"{probe.outcome.preemptions:,}",
                f"{probe.waited:,}",
                f"{probe.failed:,}",
                seconds(probe.outcome.score.itl_p50_s),
                seconds(probe.outcome.score.itl_p99_s),
                seconds(probe.outcome.report.longest_gap_max_s if probe.outcome.report else None),
            ]
            for probe in ceiling.probes
        ),
    )


def _html_table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in body)
    lines = "".join(f"<tr>{row}</tr>" for row in cells)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'


def _figures(charts: Iterable[Chart]) -> str:
    parts = (
        f"<figure><h3>{escape(chart.title)}</h3>{svg(chart)}{legend(chart.lines)}</figure>"
        for chart in charts
    )
    return f'<h2>Charts</h2><div class="charts">{"".join(parts)}</div>'


def _run_charts(outcomes: Sequence[Outcome]) -> Iterator[Chart]:
    ttfts = [Line(o.name, shares([t for r in o.records if (t := r.ttft_s) is not None])) for o in outcomes]
    yield Chart("Time to the first token", "seconds", "% of requests within", ttfts, log_x=True)
    longest = [
        Line(o.name, shares([max(found) for r in o.records if (found := r.gaps_s())])) for o in outcomes
    ]
    yield Chart("The longest gap of each stream", "seconds", "% of streams within", longest, log_x=True)
    gaps = [Line(o.name, shares([gap for r in o.records for gap in r.gaps_s()])) for o in outcomes]
    yield Chart("Between tokens", "seconds", "% of gaps within", gaps, log_x=True)
    yield Chart(
        "Output", "seconds", "tokens a second", [Line(o.name, _tokens_over_time(o)) for o in outcomes]
    )
    if any(outcome.samples for outcome in outcomes):
        yield Chart("KV cache in use", "seconds", "%", list(_of_engines(outcomes, "kv_use", 100.0)))
        yield Chart("Running in the engines", "seconds", "requests", list(_of_engines(outcomes, "running")))
        yield Chart("Waiting in the engines", "seconds", "requests", list(_of_engines(outcomes, "waiting")))
        yield Chart(
            "Preemptions since the start",
            "seconds",
            "preemptions",
            list(_of_engines(outcomes, "preemptions")),
        )


def _ceiling_charts(ceiling: Ceiling) -> Iterator[Chart]:
    probes = ceiling.probes

    def line(name: str, values: Iterable[float | None]) -> Line:
        pairs = zip((probe.sessions for probe in probes), values, strict=True)
        return Line(name, [(float(sessions), value) for sessions, value in pairs if value is not None])

    preemptions = line("preemptions", (probe.outcome.preemptions for probe in probes))
    waited = line("waited for another to end", (float(probe.waited) for probe in probes))
    yield Chart(
        "Where preemptions begin",
        "sessions at once",
        "sessions, preemptions",
        [preemptions, waited],
        marked=True,
    )
    scores = [probe.outcome.score for probe in probes]
    reports = [probe.outcome.report for probe in probes]
    yield Chart(
        "Between tokens",
        "sessions at once",
        "seconds",
        [
            line("p50", (score.itl_p50_s for score in scores)),
            line("p99", (score.itl_p99_s for score in scores)),
            line("longest gap", (one.longest_gap_max_s if one else None for one in reports)),
        ],
        marked=True,
    )


def shares(values: Sequence[float]) -> list[tuple[float, float]]:
    """For each value the percentage of all that are not above it."""
    ordered = sorted(values)
    step = max(len(ordered) // 500, 1)
    kept = [*range(0, len(ordered) - 1, step), len(ordered) - 1] if ordered else []
    return [(ordered[index], 100 * (index + 1) / len(ordered)) for index in kept]


def _tokens_over_time(outcome: Outcome) -> list[tuple[float, float]]:
    times = sorted(time - outcome.started_s for record in outcome.records for time in record.token_times_s)
    if not times:
        return []
    width_s = max(times[-1] / BUCKETS_MAX, 0.25)
    counts = [0] * (int(times[-1] / width_s) + 1)
    for time in times:
        counts[max(int(time / width_s), 0)] += 1
    return [((number + 0.5) * width_s, count / width_s) for number, count in enumerate(counts)]


def _of_engines(outcomes: Sequence[Outcome], field: str, times: float = 1.0) -> Iterator[Line]:
    for outcome in outcomes:
        urls = list(dict.fromkeys(sample.url for sample in outcome.samples))
        for number, url in enumerate(urls, 1):
            mine = [sample for sample in outcome.samples if sample.url == url]
            start = float(getattr(mine[0], field)) if field == "preemptions" else 0.0
            points = [(s.at_s - outcome.started_s, (float(getattr(s, field)) - start) * times) for s in mine]
            name = outcome.name if len(urls) == 1 else f"{outcome.name}, engine {number}"
            yield Line(name, _changes(points))


def _changes(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without the points in the middle of a level line."""
    if len(points) < 3:
        return points
    inner = (
        here
        for (before, here), (_, after) in pairwise(pairwise(points))
        if not before[1] == here[1] == after[1]
    )
    return [points[0], *inner, points[-1]]
