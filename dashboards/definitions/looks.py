"""How figures look: colours, units, thresholds, and columns of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models.dashboard import (
    DynamicConfigValue,
    Threshold,
    ThresholdsConfig,
    ThresholdsMode,
    ValueMap,
    ValueMapping,
    ValueMappingResult,
)

from definitions.promql import (
    GONE,
    MOVES,
    OWN_CODE,
    RUN_DESYNC,
    RUN_FAILED,
    RUN_HANG,
    RUN_MOVES,
    RUN_QUIET,
    RUN_SLOW,
    WAITS,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grafana_foundation_sdk.cog.builder import Builder

GREEN, YELLOW, ORANGE, RED, PURPLE, GREY = (
    "green",
    "#EAB839",
    "orange",
    "red",
    "purple",
    "#6E7077",
)
RANK_STATES = {
    MOVES: ("moves", GREEN),
    WAITS: ("waits", YELLOW),
    OWN_CODE: ("own code", RED),
    GONE: ("gone", GREY),
}
RUN_STATES = {
    RUN_MOVES: ("moves", GREEN),
    RUN_QUIET: ("quiet", YELLOW),
    RUN_SLOW: ("SLOW", ORANGE),
    RUN_DESYNC: ("DESYNC", PURPLE),
    RUN_HANG: ("HANG", RED),
    RUN_FAILED: ("FAILED", "dark-red"),
}


NO_VERDICT = "no verdict"
AS_NAME = common.BigValueTextMode.NAME
"""A stat that shows the legend in place of the value."""


def sorted_by(heading: str, *, descending: bool) -> list[Builder[common.TableSortByFieldState]]:
    """The order of a table's rows."""
    return [common_builder.TableSortByFieldState().display_name(heading).desc(descending)]


def steps(*at: tuple[float, str], base: str = GREEN) -> Builder[ThresholdsConfig]:
    """Colours from these values on, and below the first."""
    return (
        dashboard_builder.ThresholdsConfig()
        .mode(ThresholdsMode.ABSOLUTE)
        .steps([Threshold(None, base), *(Threshold(value, color) for value, color in at)])
    )


def plain() -> Builder[ThresholdsConfig]:
    """One colour, for a figure that is neither good nor bad."""
    return steps(base="blue")


def named(states: Mapping[int, tuple[str, str]]) -> list[ValueMapping]:
    """Texts and colours for the numbers of a state."""
    return [
        ValueMap(
            {
                str(value): ValueMappingResult(text=text, color=color, index=value)
                for value, (text, color) in states.items()
            }
        )
    ]


def coloured(states: Mapping[int, tuple[str, str]]) -> list[DynamicConfigValue]:
    """A column of a table that holds a state."""
    return [
        DynamicConfigValue("mappings", named(states)),
        DynamicConfigValue("custom.cellOptions", {"type": "color-background"}),
    ]


def coloured_verdicts() -> list[DynamicConfigValue]:
    """A column of a table that holds the state of verdicts."""
    colors = {"hang": RED, "failed": "dark-red", "desync": PURPLE, "slow": ORANGE}
    texts = {text: ValueMappingResult(text, color) for text, color in colors.items()}
    texts[NO_VERDICT] = ValueMappingResult(NO_VERDICT, GREEN)
    return [
        DynamicConfigValue("mappings", [ValueMap(texts)]),
        DynamicConfigValue("custom.cellOptions", {"type": "color-background"}),
    ]


def unit(name: str, decimals: int | None = None) -> list[DynamicConfigValue]:
    """The unit of a column or series."""
    values = [DynamicConfigValue("unit", name)]
    return values if decimals is None else [*values, DynamicConfigValue("decimals", decimals)]


def link(title: str, url: str) -> list[DynamicConfigValue]:
    """A column that leads to another dashboard."""
    return [DynamicConfigValue("links", [{"title": title, "url": url}])]


def dashed(color: str) -> list[DynamicConfigValue]:
    """A line that is a limit."""
    return [
        DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color}),
        DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 8]}),
        DynamicConfigValue("custom.fillOpacity", 0),
    ]
