"""Writes Grafana's JSON of each dashboard: ``python dashboards/build.py [DIRECTORY]``.

The default is ``grafana/dashboards`` beside this file, where it is kept under version
control for those who only import it. Needs grafana-foundation-sdk.
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING

from definitions import fleet, job, rank
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel, RowPanel
from grafana_foundation_sdk.models.prometheus import Dataquery

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HERE = Path(__file__).parent


def main(directory: Path) -> None:
    """Write all of them."""
    directory.mkdir(parents=True, exist_ok=True)
    encoder = JSONEncoder(sort_keys=True, indent=2)
    for name, definition in (("fleet", fleet), ("job", job), ("rank", rank)):
        text = encoder.encode(numbered(definition.dashboard().build()))
        (directory / f"{name}.json").write_text(f"{text}\n")


def numbered(dashboard: Dashboard) -> Dashboard:
    """The dashboard, each of its panels with an id, and each query with a letter."""
    numbers = count(1)
    for panel in _flat(dashboard.panels or []):
        panel.id_val = next(numbers)
        if isinstance(panel, Panel):
            for letter, target in zip(ascii_uppercase, panel.targets or [], strict=False):
                assert isinstance(target, Dataquery)  # noqa: S101 (no other is made here)
                target.ref_id = letter
    return dashboard


def _flat(panels: Iterable[Panel | RowPanel]) -> Iterator[Panel | RowPanel]:
    for panel in panels:
        yield panel
        if isinstance(panel, RowPanel):
            yield from panel.panels


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "grafana" / "dashboards")
