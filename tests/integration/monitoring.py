"""What is in dashboards/, as tests read it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DASHBOARDS = Path(__file__).parents[2] / "dashboards"
GRAFANA = DASHBOARDS / "grafana" / "dashboards"
RULES = DASHBOARDS / "prometheus" / "hangwatch.rules.yml"


def boards() -> dict[str, dict[str, Any]]:
    """The JSON of each dashboard, by its name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(GRAFANA.glob("*.json"))}


def all_panels(board: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Its panels, those in collapsed rows too, without the rows themselves."""
    for panel in board["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def expressions(board: Mapping[str, Any]) -> list[str]:
    """The expression of each query of each panel."""
    return [target["expr"] for panel in all_panels(board) for target in panel["targets"]]


def tool(command: str, *arguments: str) -> str:
    """What a command says that is run in dashboards/; fails the test where it fails."""
    found = shutil.which(command)
    assert found, f"{command} is not installed: see tests/packages.sh"
    done = subprocess.run(  # noqa: S603 (the tests' own commands)
        [found, *arguments],
        check=False,
        cwd=DASHBOARDS,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
