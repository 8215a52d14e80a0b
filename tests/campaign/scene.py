"""What a run on this node leaves for others to look at: its directory and its reports.

Copied from those of a real job of which one rank hangs, made once for all faults.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from job import QUICK, Job, busy
from plants import STRANGER, UntriedError

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN_ID = "planted"
VERDICT_S = 60.0
_guard = threading.Lock()
_made: list[_Template] = []


@dataclass(frozen=True, slots=True)
class _Template:
    where: Path
    run: Path
    reports: Path


@dataclass(frozen=True, slots=True)
class Scene:
    """A copy of it in a directory of its own. The run seems to go on."""

    where: Path
    uid: int
    name: str

    @property
    def base(self) -> Path:
        """For HANGWATCH_DIR."""
        return self.where / "base"

    @property
    def parent(self) -> Path:
        """One user's runs."""
        return self.base / f"hangwatch-{self.uid}"

    @property
    def run(self) -> Path:
        """Directory of the run."""
        return self.parent / self.name

    @property
    def page(self) -> Path:
        """Of one of its ranks."""
        return min(self.run.glob("*.page"))

    @property
    def reports(self) -> Path:
        """Directory of reports."""
        return self.where / "reports"

    @property
    def incident(self) -> Path:
        """The one there is."""
        return min((self.reports / RUN_ID).glob("incident-*"))


def template() -> _Template:
    """What the job has left; it runs once."""
    with _guard:
        if not _made:
            where = Path(tempfile.mkdtemp(prefix="campaign-scene-"))
            atexit.register(shutil.rmtree, where, ignore_errors=True)
            _made.append(_run(where))
        return _made[0]


def _run(where: Path) -> _Template:
    options = (*QUICK, "--run-id", RUN_ID, "--report-dir", str(where / "reports"))
    with Job(where / "job", *options, env={"STALL": "1"}) as job:
        job.until_ready()
        job.touch("gate")
        if not job.until_verdict(VERDICT_S * busy()):
            raise RuntimeError(f"no verdict on the job of the scene: {job.said()}")
        job.until(lambda: list((where / "reports").glob("*/incident-*/index.html")))
        run = next(path.parent for path in job.base.glob("hangwatch-*/*/lock"))
        shutil.copytree(run, where / "run", ignore=shutil.ignore_patterns(".*"))
        job.touch("release")
        job.process.wait(60)
    return _Template(where, where / "run", where / "reports")


@contextmanager
def scene(where: Path, *, stranger: bool) -> Iterator[Scene]:
    """A copy. stranger: it is another user's, whom root looks at. Raises UntriedError."""
    made = template()
    uid = STRANGER if stranger else os.getuid()
    found = Scene(where, uid, f"{RUN_ID}-1")
    shutil.copytree(made.run, found.run)
    shutil.copytree(made.reports, found.reports, symlinks=True)
    for path in found.run.glob("*.json"):
        data = path.read_bytes()
        path.write_bytes(data.replace(bytes(made.reports), bytes(found.reports)))
    (found.run / "lock").touch()
    for path in (found.parent, found.run):
        path.chmod(0o700)
    if stranger:
        if os.getuid() != 0:
            raise UntriedError("only root looks at other users' runs")
        for path in (found.parent, *found.parent.rglob("*")):
            os.chown(path, uid, uid, follow_symlinks=False)
    handle = os.open(found.run / "lock", os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield found
    finally:
        os.close(handle)
