"""What all dashboards have in common: variables, links to each other, times, and the order of their panels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from kvgate.telemetry.catalogue import ENGINE_UP, QUEUE_DEPTH, TENANT_WEIGHT, Metric
from kvgate_dashboards.parts import DATASOURCE, PanelBuilder

TAG = "kvgate"
REFRESH = "10s"
"""As often as somebody who watches an overload wants to know; a scrape each 15 s is the usual pace."""


@dataclass(frozen=True, slots=True)
class Section:
    """A row of the dashboard, with a title."""

    title: str
    panels: Sequence[PanelBuilder]


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard. `uid` is what links and bookmarks hold on to: it never changes."""

    uid: str
    title: str
    description: str
    sections: Sequence[Section]
    variables: bool = True


def to_json(board: Board) -> str:
    """The file that Grafana reads."""
    made = Dashboard(f"kvgate / {board.title}").uid(board.uid).description(board.description)
    made = made.tags([TAG]).readonly().tooltip(DashboardCursorSync.CROSSHAIR)
    made = made.time("now-1h", "now").refresh(REFRESH).timezone("browser")
    made = made.link(_to_the_others())
    if board.variables:
        made = made.variables([_datasource(), *_narrowing()])
    return json.dumps(_filled(made, board.sections).build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _filled(made: Dashboard, sections: Sequence[Section]) -> Dashboard:
    """Panels are numbered from 1 in their order, for links from outside; rows after them."""
    number = 0
    for at, section in enumerate(sections):
        if section.title:
            made = made.with_row(Row(section.title).id(1000 + at))
        for panel in section.panels:
            number += 1
            made = made.with_panel(panel.id(number))  # type: ignore[attr-defined]  # all builders have it
    return made


def _to_the_others() -> DashboardLink:
    link = (
        DashboardLink("kvgate").type(DashboardLinkType.DASHBOARDS).tags([TAG]).as_dropdown(as_dropdown=False)
    )
    return link.keep_time(keep_time=True).include_vars(include_vars=True)


def _datasource() -> DatasourceVariable:
    return DatasourceVariable("datasource").label("Data source").type("prometheus")


def _narrowing() -> list[QueryVariable]:
    in_pool = '{pool=~"$pool"}'
    return [
        _values_of("pool", "Pool", QUEUE_DEPTH, ""),
        _values_of("tenant", "Tenant", TENANT_WEIGHT, in_pool),
        _values_of("engine", "Engine", ENGINE_UP, in_pool),
    ]


def _values_of(label: str, title: str, metric: Metric, where: str) -> QueryVariable:
    """All of them unless some are chosen; `.*` also lets through what has no pool or tenant yet."""
    query = f"label_values({metric.name}{where}, {label})"
    variable = QueryVariable(label).label(title).datasource(DATASOURCE).query(query).definition(query)
    variable = variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
    variable = variable.multi(multi=True).include_all(include_all=True).all_value(".*")
    return variable.current(VariableOption(selected=True, text=["All"], value=["$__all"]))
