"""Judges a watched job against the same job without hangwatch."""

from __future__ import annotations

import re
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from fault import Outcome
from job import Job, busy

if TYPE_CHECKING:
    from collections.abc import Callable

    from job import Result

MAX_MIB = 300.0
TELLS_LOSS = (
    "watched by nobody|unwatched|not watched|cannot|could not|lost|no stacks"
    "|started again|internal error|no room|refused|no longer recorded|not updated"
)
"""In a line by which hangwatch says that it can do less."""
_OF_A_PEER = re.compile(
    r"Traceback(?:(?!/hangwatch/).)*?(?:closed by peer|reset by peer)", re.DOTALL
)
"""What a rank says of one that was killed, where its launcher does not end it before."""
_TOLD = re.compile(
    r"^Traceback.*\n(?:  File \"<frozen .*\n)+OSError: .*\n"
    r"hangwatch: the watchdog ended with exit code 1 and is started again$",
    re.MULTILINE,
)
"""The interpreter could not so much as load the watchdog's program, and that is said."""
_CRASH = re.compile(r"^Fatal Python error:(?:.+\n|\n(?=Thread|Current thread))*", re.MULTILINE)
"""What faulthandler tells of a crash in C, where a job has it."""
LONGER_S = 15.0
"""How much longer a watched job may take: a few seconds on a machine that does nothing else."""

_bare: dict[str, Result] = {}
_locks: dict[str, threading.Lock] = {}
_guard = threading.Lock()


def bare(key: str, run: Callable[[Path], Result]) -> Result:
    """The result of the job without hangwatch, run once for each key."""
    with _guard:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        if key not in _bare:
            with tempfile.TemporaryDirectory(prefix="campaign-bare-") as where:
                _bare[key] = run(Path(where))
        return _bare[key]


def steps(*, ranks: int = 2, stall: int = -1) -> Result:
    """The bare result of steps.py, of which nothing depends on when gates open."""

    def run(where: Path) -> Result:
        env = {"STALL": str(stall)}
        with Job(where, watched=False, ranks=ranks, env=env) as job:
            job.until_ready(ranks)
            job.touch("gate")
            job.touch("release")
            return job.finish()

    return bare(f"steps {ranks} {stall}", run)


def unharmed(
    watched: Result,
    expected: Result,
    *,
    extra_s: float = 0.0,
    codes: tuple[int, ...] | None = None,
    may_leave: bool = False,
) -> Outcome:
    """What a user of the job would have noticed.

    extra_s: that the fault itself held up the job. codes: exit codes that are right
    where it is not that of the bare job. may_leave: the fault ended the one that
    tidies up, which the next run does then.
    """
    harmed = []
    right = codes if codes is not None else (expected.exit_code,)
    if watched.exit_code is None:
        harmed.append("it did not end")
    elif watched.exit_code not in right:
        harmed.append(f"exit code {watched.exit_code}, not {' or '.join(map(str, right))}")
        harmed += _CRASH.findall(watched.said)
    if watched.outputs != expected.outputs:
        differing = sorted(
            name
            for name in {*watched.outputs, *expected.outputs}
            if watched.outputs.get(name) != expected.outputs.get(name)
        )
        harmed.append(f"other results in {', '.join(differing)}")
    if sorted(watched.printed.splitlines()) != sorted(expected.printed.splitlines()):
        harmed.append(f"it printed {watched.printed[-200:]!r}, not {expected.printed[-200:]!r}")
    if watched.seconds > expected.seconds + (extra_s + LONGER_S) * busy():
        harmed.append(f"{watched.seconds:.1f} s, bare {expected.seconds:.1f} s")
    harmed += [f"left running: {line[:200]}" for line in watched.survivors]
    if not may_leave:
        harmed += [f"left behind: {path}" for path in watched.left]
    harmed += [
        f"the {who} needed {mib:.0f} MiB" for who, mib in watched.peak_mib.items() if mib > MAX_MIB
    ]
    said = _OF_A_PEER.sub("", _TOLD.sub("", watched.said))
    if "Traceback" in said and "Traceback" not in expected.said:
        harmed.append(f"a traceback on standard error: {watched.said[-400:]!r}")
    return Outcome(harmed=harmed)


def healthy(watched: Result) -> Outcome:
    """No verdict may be given on a job that nothing was wrong with."""
    wrong = [report["verdict"]["headline"] for report in watched.reports]
    return Outcome(harmed=[f"called: {headline}" for headline in wrong])


def named(watched: Result, culprit: int, *, also: tuple[int, ...] = ()) -> Outcome:
    """The rank that stalled is named and nobody else, or the loss is told.

    also: ranks that the fault itself was done to, which may be named in its place.
    """
    outcome = Outcome()
    seen = False
    for report in watched.reports:
        verdict = report["verdict"]
        culprits = verdict["culprits"]
        perhaps = verdict["certainty"] == "possible" and culprit in culprits
        if perhaps or (culprits and {*culprits} <= {culprit, *also}):
            seen = True
        elif not {*culprits} <= {culprit, *also}:
            outcome.harmed.append(f"ranks {culprits} are named: {verdict['headline']}")
    said = rf"^hangwatch: \w+ \(.*\n +Rank {culprit}\b"
    seen = seen or bool(re.search(said, watched.said, re.MULTILINE))
    told = watched.lost or any(re.search(TELLS_LOSS, line) for line in watched.news)
    if not seen and not told:
        outcome.lost.append("nobody was named, and no loss told")
    return outcome
