"""What all dashboards have: their variables, links and the verdicts as annotations."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builder
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import (
    AnnotationQuery,
    DashboardCursorSync,
    DashboardLinkType,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from definitions.panels import DATASOURCE

JOB, RANK, FLEET = "hangwatch-job", "hangwatch-rank", "hangwatch-fleet"
"""The uid of each dashboard, by which they link to each other."""
TAG = "hangwatch"


def board(title: str, uid: str, description: str) -> builder.Dashboard:
    """An empty dashboard that leads to the others."""
    return (
        builder.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .timezone("browser")
        .refresh("10s")
        .time("now-30m", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .editable()
        .link(
            builder.DashboardLink("hangwatch")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(include_vars=True)
            .keep_time(keep_time=True)
        )
        .with_variable(
            builder.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
    )


def one(name: str, label: str, query: str, sort: VariableSort) -> builder.QueryVariable:
    """A variable with one value."""
    return (
        builder.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": name})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(sort)
    )


def several(name: str, label: str, query: str, sort: VariableSort) -> builder.QueryVariable:
    """A variable with any number of values, all of them at first."""
    return (
        one(name, label, query, sort)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(".*")
        .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def verdicts(where: str) -> Builder[AnnotationQuery]:
    """Marks the time of each verdict on all panels."""
    labels = "run, state, kind, reason, certainty, culprits"
    return _Verdicts(f"max by ({labels}) (hangwatch_verdict_info{{{where}}})")


class _Verdicts(Builder[AnnotationQuery]):
    """Builds what is written for the verdicts."""

    def __init__(self, expression: str) -> None:
        self._expression = expression

    def build(self) -> AnnotationQuery:
        """The annotation."""
        return _PrometheusAnnotation(
            name="Verdicts", datasource=DATASOURCE, icon_color="red", expr=self._expression
        )


class _PrometheusAnnotation(AnnotationQuery):
    """With the fields that Grafana's Prometheus data source adds, and the SDK lacks.

    grafana/grafana, packages/grafana-prometheus/src/annotations.ts.
    """

    def to_json(self) -> dict[str, object]:
        """All fields."""
        return {
            **super().to_json(),
            "step": "10s",
            "tagKeys": "run,state,kind",
            "textFormat": "rank {{culprits}}: {{reason}} ({{certainty}})",
            "titleFormat": "{{state}}: {{kind}}",
            "useValueForTime": "off",
        }
