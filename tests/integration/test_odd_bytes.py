"""Names that are no UTF-8: a job is watched as any other wherever they come from."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import waiting
from waiting import BOUND_S

pytest.importorskip("hangwatch._native")
ODD = os.fsdecode(b"\xff\xfe")
HANGS = f"""#!{sys.executable}
import os, sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from acting_rank import Rank
sys.path.insert(0, {str(Path(waiting.__file__).parent)!r})
from waiting import until
def reported():
    for page in Path(sys.argv[2]).glob("[!l]*/incident-*/index.html"):
        try:
            return '"state": "hang"' in page.with_name("report.json").read_text()
        except FileNotFoundError:  # it is being replaced
            continue
directory = os.environ.pop("HANGWATCH_DIR")
with Rank(directory, 0) as first, Rank(directory, 1) as second:
    for rank in (first, second):
        rank.do("begin")
        rank.do("end")
    first.do("begin")
    until(reported, "the report", {BOUND_S})
"""
"""Two ranks, of which the second does not come, until the report is there."""


@pytest.mark.parametrize(
    "where", ["command", "argument", "directory", "reports", "variable", "run directory"]
)
def test_a_hang_is_reported(tmp_path: Path, where: str) -> None:
    directory = tmp_path / (ODD if where == "directory" else "here")
    directory.mkdir()
    program = directory / (f"train-{ODD}" if where == "command" else "train")
    program.write_text(HANGS)
    program.chmod(0o755)
    reports = directory / (f"reports-{ODD}" if where == "reports" else "reports")
    base = tmp_path / (f"base-{ODD}" if where == "run directory" else "base")
    base.mkdir()
    variables = {"HANGWATCH_DIR": str(base), "HANGWATCH_METRICS_ADDR": "127.0.0.1:0"}
    variables |= {"MASTER_ADDR": ODD, "HOSTNAME": ODD, ODD: ODD} if where == "variable" else {}
    keep = "import os, sys; open('hooked', 'wb').write(os.fsencode(sys.argv[1]))"
    hook = shlex.join([sys.executable, "-c", keep])
    done = subprocess.run(  # noqa: S603 (the test's own command)
        [
            *(sys.executable, "-m", "hangwatch", "--report-dir", reports.name, "--interval", "0.1"),
            *("--suspect-after", "0.5", "--hang-after", "1", "--stacks", "off", "--hook", hook),
            *(str(program), ODD if where == "argument" else "plain", reports.name),
        ],
        cwd=directory,
        env={**os.environ, **variables},
        capture_output=True,
        timeout=BOUND_S * 2,
        check=False,
    )
    said = done.stderr.decode()  # what we say is UTF-8, whatever it is about
    assert done.returncode == 0, said
    assert "hangwatch: HANG" in said
    assert "watchdog was killed" not in said
    assert "again" not in said
    (report,) = reports.glob("[!l]*/incident-*/report.json")
    content = json.loads(report.read_text("utf-8"))
    assert content["verdict"]["culprits"] == [1]
    assert content["verdict"]["state"] == "hang"
    assert "\\ud" not in report.read_text("ascii")
    assert (report.parent / "index.html").read_text("utf-8")
    (run,) = reports.glob("[!l]*/run.json")
    assert "\\ud" not in run.read_text("ascii")
    if where in {"command", "argument"}:
        assert "\\xff\\xfe" in " ".join(content["run"]["command"])
    hooked = Path(os.fsdecode((directory / "hooked").read_bytes()))
    assert hooked in {report, report.parent}
