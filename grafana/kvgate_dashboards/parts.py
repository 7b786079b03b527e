"""The panels there are, each a function from what it says to a panel of the SDK.

A panel cannot be made without a unit and a description, and the description not without what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    text,
    timeseries,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import text as text_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from kvgate_dashboards.runbook import link_of

DATASOURCE = common_models.DataSourceRef(type_val="prometheus", uid="${datasource}")
GREEN, YELLOW, ORANGE, RED, BLUE, GREY = "green", "yellow", "orange", "red", "blue", "#8e8e8e"

REQUESTS_S, SECONDS, SHARE, COUNT, PLAIN = "reqps", "s", "percentunit", "short", "none"
BLOCKS, TOKENS_S, TOKENS = "suffix: blocks", "suffix: tokens/s", "suffix: tokens"

PanelBuilder = Builder[models.Panel]
Thresholds = Sequence[tuple[float | None, str]]
CALM: Thresholds = ((None, GREEN),)
"""For what has no good or bad value."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A query and the name of what it gives."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class About:
    """What every panel says of itself."""

    title: str
    shows: str
    do: str
    """What to do about it: the reader is woken at night."""
    runbook: str = ""
    """Title of a paragraph of the runbook."""
    width: int = 8
    height: int = 8

    @property
    def description(self) -> str:
        return f"{self.shows}\n\n**Do:** {self.do}"


def number(
    about: About,
    unit: str,
    asks: Sequence[Ask],
    thresholds: Thresholds,
    *,
    names: bool = False,
    empty: str = "",
) -> PanelBuilder:
    """Large numbers as of now; with `names` the legends of what is there in place of numbers."""
    mode = common_models.BigValueTextMode.NAME if names else common_models.BigValueTextMode.AUTO
    panel = _common(stat.Panel(), about, unit, thresholds).text_mode(mode)
    panel = panel.color_mode(
        common_models.BigValueColorMode.BACKGROUND if names else common_models.BigValueColorMode.VALUE
    )
    panel = panel.graph_mode(
        common_models.BigValueGraphMode.NONE if names else common_models.BigValueGraphMode.AREA
    )
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
    if names:
        panel = panel.text(common.VizTextDisplayOptions().title_size(14)).orientation(
            common_models.VizOrientation.HORIZONTAL
        )
    return _targets(panel.no_value(empty) if empty else panel, asks, instant=names)


def bars(
    about: About,
    unit: str,
    asks: Sequence[Ask],
    thresholds: Thresholds,
    *,
    largest: float = 0,
    empty: str = "",
) -> PanelBuilder:
    """One bar for each series, as of now; `largest` is the end of the scale, 0 the largest of them."""
    panel = _common(bargauge.Panel(), about, unit, thresholds).min(0)
    panel = panel.orientation(common_models.VizOrientation.HORIZONTAL)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
    panel = panel.max(largest) if largest else panel
    return _targets(panel.no_value(empty) if empty else panel, asks, instant=True)


def lines(
    about: About,
    unit: str,
    asks: Sequence[Ask],
    thresholds: Thresholds = CALM,
    *,
    stacked: bool = False,
    steps: bool = False,
) -> PanelBuilder:
    """Curves over time; with thresholds beyond the first, those are drawn as lines."""
    panel = (
        _common(timeseries.Panel(), about, unit, thresholds).line_width(1).fill_opacity(30 if stacked else 8)
    )
    panel = panel.show_points(common_models.VisibilityMode.NEVER).axis_soft_min(0)
    panel = panel.legend(_legend()).tooltip(_tooltip())
    panel = panel.color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL).group("A"))
    if steps:
        panel = panel.line_interpolation(common_models.LineInterpolation.STEP_AFTER)
    if len(thresholds) > 1:
        style = common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED)
        panel = panel.thresholds_style(style)
    return _targets(panel, asks)


def states(about: About, asks: Sequence[Ask], names: Mapping[int, tuple[str, str]]) -> PanelBuilder:
    """A strip of colours for each series; `names` has the word and the colour of each value."""
    panel = _common(statetimeline.Panel(), about, PLAIN, CALM).mappings([mapping(names)])
    panel = (
        panel.show_value(common_models.VisibilityMode.AUTO).merge_values(merge_values=True).row_height(0.8)
    )
    return _targets(panel.legend(_legend()), asks)


def sheet(
    about: About, asks: Sequence[Ask], key: str, columns: Sequence[tuple[str, str]], drop: Sequence[str] = ()
) -> PanelBuilder:
    """A table with a row for each value of the label `key` and a column (title, unit) for each query."""
    panel = _common(table.Panel(), about, COUNT, CALM)
    for ask, ref in zip(asks, "ABCDEFGHIJ", strict=False):
        query = _query(ask, ref).instant().format(PromQueryFormat.TABLE)
        panel = panel.with_target(query)
    renamed = {f"Value #{ref}": title for ref, (title, _) in zip("ABCDEFGHIJ", columns, strict=False)}
    hidden = dict.fromkeys(("Time", *drop), True)
    panel = panel.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    panel = panel.with_transformation(
        models.DataTransformerConfig(
            id_val="organize",
            options={"excludeByName": hidden, "renameByName": renamed, "indexByName": {"pool": 0, key: 1}},
        )
    )
    for title, unit in columns:
        panel = panel.override_by_name(title, [models.DynamicConfigValue(id_val="unit", value=unit)])
    built: PanelBuilder = panel
    return built


def words(title: str, content: str, *, width: int = 24, height: int = 8) -> PanelBuilder:
    """A panel of text, in Markdown."""
    panel = text.Panel().title(title).mode(text_models.TextMode.MARKDOWN).content(content)
    return panel.span(width).height(height)


def mapping(names: Mapping[int, tuple[str, str]]) -> models.ValueMap:
    """Numbers that stand for words."""
    return models.ValueMap(
        options={
            str(value): models.ValueMappingResult(text=word, color=color, index=index)
            for index, (value, (word, color)) in enumerate(names.items())
        }
    )


def _common(panel: Any, about: About, unit: str, thresholds: Thresholds) -> Any:
    """What all panels have. The builders of the SDK share these methods and no type that says so."""
    steps = [models.Threshold(value=value, color=color) for value, color in thresholds]
    panel = panel.title(about.title).description(about.description).datasource(DATASOURCE).unit(unit)
    panel = panel.span(about.width).height(about.height)
    panel = panel.thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    if about.runbook:
        panel = panel.links([link_of(about.runbook)])
    return panel


def _targets(panel: Any, asks: Sequence[Ask], *, instant: bool = False) -> PanelBuilder:
    for ask, ref in zip(asks, "ABCDEFGHIJ", strict=False):
        query = _query(ask, ref)
        panel = panel.with_target(query.instant() if instant else query.range())
    built: PanelBuilder = panel
    return built


def _query(ask: Ask, ref: str) -> prometheus.Dataquery:
    query = prometheus.Dataquery().datasource(DATASOURCE).expr(ask.expr).ref_id(ref)
    return query.legend_format(ask.legend) if ask.legend else query


def _legend() -> common.VizLegendOptions:
    legend = common.VizLegendOptions().display_mode(common_models.LegendDisplayMode.LIST)
    return legend.placement(common_models.LegendPlacement.BOTTOM).show_legend(show_legend=True)


def _tooltip() -> common.VizTooltipOptions:
    tooltip = common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI)
    return tooltip.sort(common_models.SortOrder.DESCENDING)
