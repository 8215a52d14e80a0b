"""FIFOs, links, devices and their like wherever a command of hangwatch's opens a path.

The places are those that ``strace -e trace=open,openat`` shows of each command below
directories that others may write to, or that root looks at though others own them. What
lies in the run directory of a job that runs is its user's alone (0700); there it is tried
on the commands that look at it, root's included, and not on the job.

A path that the operator has typed may be a link. What lies below a directory that was
named may not: of a link to somebody else's file nothing is shown.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oracle
from bounded import hangwatch, no_crash, sound
from fault import Fault, Outcome, merged
from job import PROGRAMS, QUICK, Job, Result, busy
from plants import PLANTS, STRANGER, Secret, UntriedError, planted
from scene import RUN_ID, Scene, scene

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

NAME = "planted"
COUNT = 100
SECONDS = 2
FAULT = "FIFOs, links, sockets, devices, huge, foreign, swapped"
MOMENT = "every path that a command opens"

OTHERS_RUN = "hangwatch-reports-of-another-run"
TOLD = r"pages are kept in|no directory for|reports cannot be written|could not|cannot"
VERDICT_S = 20.0
LEFTOVER_AGE_S = 3600.0
SOUND_DIRECTORY = ("directory", "link-directory")
"""Serve as well where a directory is wanted."""
QUIET = ("foreign", "swap", "directory", "link-directory")
"""Of which a command that looks for a file among others need say nothing."""


@dataclass(frozen=True, slots=True)
class Look:
    """A command that looks at what there is."""

    name: str
    words: Callable[[Scene], list[str]]
    path: Callable[[Scene], Path]
    tells: bool = False
    """Whether the operator has asked for just this, and is told that it is not there."""
    typed: bool = False
    """Whether the operator has typed this very path."""


def _top(_: Scene) -> list[str]:
    return ["top", "--once"]


def _doctor(_: Scene) -> list[str]:
    return ["doctor"]


LOOKS = (
    Look("top-lock", _top, lambda at: at.run / "lock"),
    Look("top-facts", _top, lambda at: at.run / "run.json"),
    Look("top-page", _top, lambda at: at.page),
    Look("top-state", _top, lambda at: at.run / "watchdog.json"),
    Look("top-note", _top, lambda at: at.run / "agent-4321"),
    Look("top-run", _top, lambda at: at.run),
    Look("top-parent", _top, lambda at: at.parent),
    Look("top-report", _top, lambda at: at.incident / "report.json"),
    Look("top-directory", lambda at: ["top", str(at.run), "--once"], lambda at: at.page),
    Look("top-companion", _top, lambda at: at.run / "command-4321"),
    Look("inspect-lock", lambda _: ["inspect", "PID"], lambda at: at.run / "lock"),
    Look("inspect-facts", lambda _: ["inspect", "PID"], lambda at: at.run / "run.json"),
    Look("inspect-page", lambda _: ["inspect", "PID"], lambda at: at.page),
    Look("doctor-lock", _doctor, lambda at: at.run / "lock"),
    Look("doctor-facts", _doctor, lambda at: at.run / "run.json"),
    Look("doctor-page", _doctor, lambda at: at.page),
    Look("doctor-note", _doctor, lambda at: at.run / "agent-4321"),
    Look(
        "report-file",
        lambda at: ["report", str(at.reports)],
        lambda at: at.incident / "report.json",
        tells=True,
    ),
    Look(
        "report-typed",
        lambda at: ["report", str(at.incident / "report.json")],
        lambda at: at.incident / "report.json",
        tells=True,
        typed=True,
    ),
    Look("report-latest", lambda at: ["report", str(at.reports)], lambda at: at.reports / "latest"),
    Look("report-incident", lambda at: ["report", str(at.reports)], lambda at: at.incident),
    Look(
        "list-run",
        lambda at: ["report", "--list", str(at.reports)],
        lambda at: at.reports / RUN_ID / "run.json",
    ),
    Look(
        "list-report",
        lambda at: ["report", "--list", str(at.reports)],
        lambda at: at.incident / "report.json",
        tells=True,
    ),
    Look(
        "list-directory",
        lambda at: ["report", "--list", str(at.reports)],
        lambda at: at.reports / OTHERS_RUN,
    ),
    Look(
        "analyze-page",
        lambda at: ["analyze", str(at.incident)],
        lambda at: at.incident / "pages" / "rank-0.page",
        tells=True,
    ),
    Look(
        "analyze-dump",
        lambda at: ["analyze", str(at.incident)],
        lambda at: at.incident / "flight" / "nccl_trace_rank_1",
        tells=True,
    ),
    Look(
        "analyze-report",
        lambda at: ["analyze", str(at.incident)],
        lambda at: at.incident / "report.json",
        tells=True,
    ),
    Look(
        "analyze-typed",
        lambda at: ["analyze", str(at.incident / "pages" / "rank-0.page")],
        lambda at: at.incident / "pages" / "rank-0.page",
        tells=True,
        typed=True,
    ),
)
STARTS = (
    *("base", "parent", "leftover", "leftover-lock", "leftover-file"),
    *("reports", "latest", "run", "run-file"),
)
"""What a supervisor finds when it starts, and when its command has ended."""
JOBS = ("base", "metrics", "target", "incident", "latest", "source")
"""What a watchdog finds while a job runs of which a rank hangs."""
PLACES = (
    *((look.name, look) for look in LOOKS),
    *((f"start-{name}", None) for name in STARTS),
    *((f"job-{name}", None) for name in JOBS),
)
_LOOKS = {look.name: look for look in LOOKS}


def draw(number: int, dice: random.Random) -> dict[str, Any]:
    """Where, and what; the same place gets another thing each time it comes."""
    place, _ = PLACES[number % len(PLACES)]
    turn = number // len(PLACES)
    what = PLANTS[(number % len(PLACES) + turn * 5) % len(PLANTS)]
    return {"place": place, "what": what, "whose": dice.choice(("ours", "stranger"))}


def inject(fault: Fault, where: Path) -> Outcome:
    """Plant it, and have it met."""
    place, what = fault.drawn["place"], fault.drawn["what"]
    stranger = fault.drawn["whose"] == "stranger"
    try:
        if place in _LOOKS:
            return _looked_at(_LOOKS[place], what, where, stranger=stranger)
        act = _at_start if place.startswith("start-") else _in_a_job
        return act(place.partition("-")[2], what, where, stranger=stranger)
    except UntriedError as error:
        return Outcome(untried=str(error))


# Commands that look.


def _looked_at(look: Look, what: str, where: Path, *, stranger: bool) -> Outcome:
    others = stranger and look.name.startswith(("top", "inspect", "doctor"))
    with scene(where, stranger=others) as at:
        secret = Secret(where / "secret", like=_like(look, at))
        secret.make()
        path = look.path(at)
        if look.name == "top-companion":
            _share(at)
        with planted(what, path, secret, stranger=stranger), _sleeper(at) as pid:
            words = [str(pid) if word == "PID" else word for word in look.words(at)]
            done = hangwatch(words, where, {"HANGWATCH_DIR": str(at.base)})
        outcome = sound(done)
        if secret.mark in done.text:
            outcome.harmed.append(f"it shows what a link leads to: {done.text[:300]!r}")
        outcome.harmed += [f"touched behind a link: {name}" for name in secret.touched()]
        told = path.name in done.text or path.parent.name in done.text
        if look.tells and what not in QUIET and not told:
            outcome.harmed.append(f"it does not say what is wrong: {done.text[-300:]!r}")
        if look.tells and look.typed and what not in QUIET and done.code == 0:
            outcome.harmed.append("it says that all is well")
        return outcome


def _like(look: Look, at: Scene) -> bytes:
    """What the reader would take for its own, unless the operator has said that it is."""
    if look.typed:
        return b""
    if look.name.endswith("facts"):
        facts = json.loads((at.run / "run.json").read_bytes())
        return json.dumps(facts | {"run_id": "MARK", "command": ["MARK"]}).encode()
    if look.name in {"report-file", "list-report", "top-report"}:
        report = json.loads((at.incident / "report.json").read_bytes())
        verdict = report["verdict"] | {"headline": "MARK", "explanation": "MARK"}
        return json.dumps(report | {"verdict": verdict}).encode()
    if look.name == "list-run":
        found = json.loads(min(at.reports.glob("*/incident-*/report.json")).read_bytes())
        return json.dumps(found["run"] | {"command": ["MARK"], "exit_code": 0}).encode()
    return b""


def _share(at: Scene) -> None:
    """Have several supervisors for the run, each with a file of its own."""
    facts = json.loads((at.run / "run.json").read_bytes())
    (at.run / "run.json").write_text(json.dumps(facts | {"shared": True}))


@contextmanager
def _sleeper(at: Scene) -> Iterator[int]:
    """A process that says that it belongs to the run."""
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={"HANGWATCH_DIR": str(at.run), "RANK": "0", "PATH": os.defpath},
    ) as process:
        try:
            yield process.pid
        finally:
            process.kill()


# The start of a supervisor.


def _at_start(place: str, what: str, where: Path, *, stranger: bool) -> Outcome:
    command = ("sh", "-c", "echo out; echo err >&2; exit 3")

    def bare(directory: Path) -> Result:
        with Job(directory, watched=False, command=command) as job:
            return job.finish()

    expected = oracle.bare("planted start", bare)
    secret = Secret(where / "secret")
    secret.make()
    base, reports = where / "planted" / "base", where / "planted" / "reports"
    parent = base / f"hangwatch-{os.getuid()}"
    path = {
        "base": base,
        "parent": parent,
        "leftover": parent / "left-1",
        "leftover-lock": parent / "left-1" / "lock",
        "leftover-file": parent / "left-1" / "file",
        "reports": reports,
        "latest": reports / "latest",
        "run": reports / RUN_ID,
        "run-file": reports / RUN_ID / "run.json",
    }[place]
    for directory in (parent, reports) if place not in {"base", "parent"} else (base,):
        directory.mkdir(parents=True, exist_ok=True)
    if what in {"foreign", "swap"} and place in {"base", "parent", "leftover", "reports", "run"}:
        path.mkdir(parents=True, exist_ok=True)
    with planted(what, path, secret, stranger=stranger):
        _make_old(parent / "left-1")
        options = ("--run-id", RUN_ID, "--report-dir", str(reports), "--metrics-addr", "off")
        with Job(where / "job", *options, command=command, env={"HANGWATCH_DIR": str(base)}) as job:
            result = job.finish()
    outcome = oracle.unharmed(result, expected)
    _judge_files(outcome, secret, [where / "planted" / "reports"], result)
    spoilt = what not in {*SOUND_DIRECTORY, "swap", "foreign"}
    if place in {"base", "parent", "reports", "run"} and spoilt and not result.news[1:]:
        outcome.lost.append("nothing is said of what cannot be had")
    return outcome


def _make_old(path: Path) -> None:
    """What was left behind long ago is swept."""
    with suppress(OSError):
        long_ago = time.time() - LEFTOVER_AGE_S
        os.utime(path, (long_ago, long_ago), follow_symlinks=False)


# A job that runs.


def _in_a_job(place: str, what: str, where: Path, *, stranger: bool) -> Outcome:
    expected = oracle.steps(stall=1)
    secret = Secret(where / "secret")
    secret.make()
    base, reports = where / "planted" / "base", where / "planted" / "reports"
    metrics = base / "hangwatch-metrics"
    script = where / "steps.py"
    shutil.copy(PROGRAMS / "steps.py", script)
    long_ago = time.time() - LEFTOVER_AGE_S
    os.utime(script, (long_ago, long_ago))
    path = {
        "base": base / f"hangwatch-{os.getuid()}",
        "metrics": metrics,
        "target": metrics / f"{os.getuid()}-left.json",
        "incident": reports / RUN_ID / "incident-001",
        "latest": reports / "latest",
        "source": script,
    }[place]
    for directory in (base, reports):
        directory.mkdir(parents=True)
    if place in {"base", "metrics"}:
        _open_to_all(base)
    if what in {"foreign", "swap"} and place in {"base", "metrics", "incident"}:
        path.mkdir(parents=True)
    options = (*QUICK[:-1], "127.0.0.1:0", "--run-id", RUN_ID, "--report-dir", str(reports))
    env = {"STALL": "1", "HANGWATCH_DIR": str(base)}
    program = str(script)

    def play(job: Job) -> Result:
        job.until_verdict(VERDICT_S * busy())
        job.touch("release")
        return job.finish()

    if place == "source":
        with Job(where / "job", *options, env=env, program=program) as job:
            job.until_ready()
            with planted(what, path, secret, stranger=stranger):
                job.touch("gate")
                result = play(job)
    else:
        with (
            planted(what, path, secret, stranger=stranger),
            Job(where / "job", *options, env=env, program=program) as job,
        ):
            job.until_ready()
            job.touch("gate")
            result = play(job)
    seen = [oracle.unharmed(result, expected), no_crash(result)]
    outcome = merged([*seen, oracle.named(result, 1)])
    _judge_files(outcome, secret, [reports, metrics], result)
    return outcome


def _open_to_all(base: Path) -> None:
    """A directory for everybody's files, which somebody else has made. Raises UntriedError."""
    base.chmod(0o1777)
    if os.getuid() != 0:
        return
    os.chown(base, STRANGER, STRANGER)


def _judge_files(outcome: Outcome, secret: Secret, places: list[Path], result: Result) -> None:
    """Nothing is shown of what a link leads to, nor changed there."""
    outcome.harmed += [f"touched behind a link: {name}" for name in secret.touched()]
    if secret.mark in result.printed + result.said:
        outcome.harmed.append("it shows what a link leads to")
    for place in places:
        for directory, _, names in os.walk(place):
            for name in names:
                path = Path(directory, name)
                if _shows(path, secret.mark):
                    outcome.harmed.append(f"{path.relative_to(place)} has what a link leads to")


def _shows(path: Path, mark: str) -> bool:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 24:
        return False
    return mark.encode() in path.read_bytes()
