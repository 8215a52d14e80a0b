"""Makes the pictures of the job's dashboard in docs/pictures, from a real run.

A job of eight ranks runs under watch and is scraped by a real Prometheus: it moves, waits for
rank 1 for a while, goes on, and hangs. The panels of grafana/dashboards/job.json above its
first heading are then drawn from the answers to their own queries: by this script (see
integration/dashboard_panels.py), not by Grafana, of which it has only the look. The node is
shown as node-3.

Needs what the tests need, matplotlib (``pip install matplotlib``) and, to look right, the
font Inter (``apt-get install fonts-inter``).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

TESTS = Path(__file__).resolve().parent
for place in ("integration", "suite"):
    sys.path.insert(0, str(TESTS / place))

import harness  # noqa: E402 (found by the line above)
from dashboard_panels import HUES, Picture, Shown  # noqa: E402
from monitoring import boards  # noqa: E402
from prometheus_server import Prometheus, Series, prometheus  # noqa: E402
from waiting import until  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PICTURES = TESTS.parent / "docs/pictures"
RUN, NODE, RANKS = "pretrain-7", "node-3", 8
MOVES_S, WAITS_S, GOES_ON_S, HANGS_S = 65.0, 13.0, 40.0, 32.0
SHOWN_S = MOVES_S + WAITS_S + GOES_ON_S + HANGS_S


@contextmanager
def job(where: Path) -> Iterator[tuple[Prometheus, Path]]:
    """A job that is watched and scraped; rank 1 is in its own code while the file exists."""
    base, stall, token = where / "base", where / "stall", uuid.uuid4().hex
    base.mkdir()
    command = (
        *(sys.executable, "-m", "hangwatch", "--run-id", RUN, "--metrics-addr", "127.0.0.1:0"),
        *("--suspect-after", "8", "--hang-after", "18", "--report-dir", str(where / "reports")),
        *("torchrun", "--standalone", f"--nproc-per-node={RANKS}"),
        *(str(harness.PROGRAMS / "stalls_while.py"), str(stall), str(where / "over")),
    )
    printed = where / "stdout"
    with (
        prometheus(where / "prometheus", base / "hangwatch-metrics", harness.free_port()) as server,
        printed.open("wb") as stdout,
    ):
        process = subprocess.Popen(  # noqa: S603 (the command is made above)
            command,
            env=harness.environment({"HANGWATCH_DIR": str(base)}) | {harness.TOKEN: token},
            cwd=where,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            start_new_session=True,
        )
        try:
            until(lambda: "training" in printed.read_text(), "the job")
            yield server, stall
        finally:
            harness.end(process, token)


def observed() -> tuple[list[Shown], list[Series]]:
    """The panels and the marks of verdicts, as they are in the hang at the end."""
    board = boards()["job"]
    panels = takewhile(lambda panel: panel["type"] != "row", board["panels"])
    with tempfile.TemporaryDirectory() as directory, job(Path(directory)) as (server, stall):
        time.sleep(MOVES_S)
        stall.touch()
        time.sleep(WAITS_S)
        stall.unlink()
        time.sleep(GOES_ON_S)
        stall.touch()
        time.sleep(HANGS_S)
        until(lambda: server.now('hangwatch_verdict_info{state="hang"}'), "the verdict")
        shown = [Shown(one, [_answer(server, asked) for asked in one["targets"]]) for one in panels]
        return shown, _answer(server, board["annotations"]["list"][0])


def _answer(server: Prometheus, asked: Mapping[str, Any]) -> list[Series]:
    """What a query gives as Grafana sends it, with all nodes and ranks chosen."""
    values = {"run": RUN, "node": ".*", "rank": ".*"}
    values |= {"__rate_interval": "4s", "__range": f"{SHOWN_S:g}s"}
    text = re.sub(r"\$(\w+)", lambda found: values.get(found[1], found[0]), asked["expr"])
    found = server.now(text) if asked.get("instant") else server.over(text, SHOWN_S)
    for series in found:
        if "node" in series["metric"]:
            series["metric"]["node"] = NODE
    return found


def main() -> None:
    shown, marks = observed()
    board = boards()["job"]
    for scheme in HUES:
        picture = Picture(scheme, board, {"Run": RUN, "Node": "All", "Rank": "All"}, SHOWN_S)
        picture.draw(shown, marks)
        path = PICTURES / f"dashboard-job-{scheme}.png"
        picture.figure.savefig(path)
        sys.stdout.write(f"{path.name}: {path.stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    main()
