"""The watched jobs of this node: whether all of their ranks are recorded, and how well."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from hangwatch.commands.top import runs
from hangwatch.commands.top.ranks import Processes
from hangwatch.console import News
from hangwatch.evidence.pages.finder import Pages
from hangwatch.preflight.finding import Finding, ok, warn
from hangwatch.text import the_ranks

CHECK = "jobs"
_LACKS = "docs/compatibility.md and docs/limits.md say what is seen with which"


def jobs(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A finding or more for each run that goes on."""
    found = runs.find(environ)
    if not found:
        yield ok(CHECK, "none is watched here at present")
    for run in found:
        yield from _job(run)


def _job(run: runs.Run) -> Iterator[Finding]:
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    pages = Pages(run.path, News(nowhere), alive=Processes().alive)
    try:
        seen = {rank: one.light for rank, one in pages.look().items()}
        notes = sorted(set(pages.notes().values()))
    finally:
        pages.close()
        os.close(nowhere)
    lacking = False
    for why in sorted({page.recorder_reason for page in seen.values() if page.recorder_reason}):
        lacking = True
        ranks = the_ranks([rank for rank, page in seen.items() if page.recorder_reason == why])
        yield warn(
            CHECK,
            f"{run.name}: {ranks} recorded by Python, a few times a second: {why}",
            "install hangwatch with its native module for the job's interpreter",
        )
    for why in sorted({page.disarmed for page in seen.values() if page.disarmed}):
        lacking = True
        ranks = the_ranks([rank for rank, page in seen.items() if page.disarmed == why])
        yield warn(CHECK, f"{run.name}: {ranks} recorded no more: {why}", "the job itself goes on")
    for lacks in sorted({page.torch_lacks for page in seen.values() if page.torch_lacks}):
        lacking = True
        ranks = the_ranks([rank for rank, page in seen.items() if page.torch_lacks == lacks])
        yield warn(CHECK, f"{run.name}: {ranks}, by their torch and libraries: {lacks}", _LACKS)
    for note in notes:
        lacking = True
        yield warn(CHECK, f"{run.name}: a rank is not recorded: {note}", "the job itself goes on")
    if not lacking:
        count = len(seen)
        shown = (
            f"{count} rank{'s' if count != 1 else ''} recorded natively" if seen else "no rank yet"
        )
        yield ok(CHECK, f"{run.name}: {shown}")
