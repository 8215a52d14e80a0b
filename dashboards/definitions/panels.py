"""Panels with what all of them share: the data source, the look, a description each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grafana_foundation_sdk.builders import bargauge as bargauge_builder
from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.builders import heatmap as heatmap_builder
from grafana_foundation_sdk.builders import prometheus as prometheus_builder
from grafana_foundation_sdk.builders import stat as stat_builder
from grafana_foundation_sdk.builders import statushistory as statushistory_builder
from grafana_foundation_sdk.builders import table as table_builder
from grafana_foundation_sdk.builders import timeseries as timeseries_builder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    Panel,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from definitions.looks import steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from grafana_foundation_sdk.cog.builder import Builder
    from grafana_foundation_sdk.cog.variants import Dataquery

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")


def query(expression: str, legend: str = "") -> prometheus_builder.Dataquery:
    """Values over the time shown."""
    return prometheus_builder.Dataquery().expr(expression).legend_format(legend).range()


def arrivals(expression: str, legend: str = "") -> prometheus_builder.Dataquery:
    """Values over the time shown, of what the watchdog looks at every 5 s only.

    The interval makes $__rate_interval no less than four times that.
    """
    return query(expression, legend).interval("5s")


def now(expression: str, legend: str = "") -> prometheus_builder.Dataquery:
    """Values at the end of the time shown."""
    return prometheus_builder.Dataquery().expr(expression).legend_format(legend).instant()


def stat(title: str, description: str, width: int, height: int = 4) -> stat_builder.Panel:
    """One figure, its background coloured."""
    return (
        stat_builder.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(width)
        .height(height)
        .color_mode(common.BigValueColorMode.BACKGROUND)
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(steps())
    )


def timeseries(
    title: str, description: str, width: int = 8, height: int = 8
) -> timeseries_builder.Panel:
    """Lines over time."""
    return (
        timeseries_builder.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(width)
        .height(height)
        .min(0)
        .line_width(1)
        .fill_opacity(8)
        .show_points(common.VisibilityMode.NEVER)
        .legend(
            common_builder.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.TABLE)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
            .calcs(["max", "lastNotNull"])
        )
        .tooltip(
            common_builder.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
    )


def states(title: str, description: str, width: int, height: int) -> statushistory_builder.Panel:
    """A row for each series, a coloured cell for each moment."""
    return (
        statushistory_builder.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(width)
        .height(height)
        .show_value(common.VisibilityMode.NEVER)
        .row_height(0.95)
        .col_width(1)
        .fill_opacity(85)
        .max_data_points(150)
        .legend(
            common_builder.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
        )
    )


def heatmap(title: str, description: str, width: int = 8, height: int = 8) -> heatmap_builder.Panel:
    """A row for each series or bucket, a shade for each value."""
    return (
        heatmap_builder.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(width)
        .height(height)
        .calculate(calculate=False)
        .cell_gap(1)
        .color(
            heatmap_builder.HeatmapColorOptions()
            .mode(HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .exponent(0.5)
            .steps(64)
        )
        .filter_values(heatmap_builder.FilterValueRange().le(1e-9))
        .show_legend()
        .show_tooltip()
    )


def bars(title: str, description: str, width: int = 8, height: int = 8) -> bargauge_builder.Panel:
    """A bar for each series."""
    return (
        bargauge_builder.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(width)
        .height(height)
        .min(0)
        .orientation(common.VizOrientation.HORIZONTAL)
        .display_mode(common.BarGaugeDisplayMode.BASIC)
        .reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]))
    )


def table(
    title: str,
    description: str,
    width: int,
    height: int,
    columns: Mapping[str, str],
) -> table_builder.Panel:
    """Rows of all queries, which are merged where their labels agree.

    columns: the label, or ``Value #A`` for the first query's value, to its heading; in
    this order. What is not named is not shown.
    """
    order = {name: index for index, name in enumerate(columns)}
    return (
        table_builder.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(width)
        .height(height)
        .cell_height(common.TableCellHeight.SM)
        .with_transformation(DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            DataTransformerConfig(
                id_val="filterFieldsByName", options={"include": {"names": list(columns)}}
            )
        )
        .with_transformation(
            DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": {},
                    "indexByName": order,
                    "renameByName": dict(columns),
                },
            )
        )
    )


def rows(*expressions: str) -> list[Builder[Dataquery]]:
    """The queries of a table, A, B and so on."""
    return [now(expression).format(PromQueryFormat.TABLE) for expression in expressions]


def row(title: str, panels: Sequence[Builder[Panel]]) -> dashboard_builder.Row:
    """A row that is collapsed, with its panels."""
    made = dashboard_builder.Row(title).collapsed(collapsed=True)
    for panel in panels:
        made = made.with_panel(panel)
    return made
