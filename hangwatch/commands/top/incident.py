"""The current incident: what the watchdog keeps of it, and what its report adds to the rows.

On a healthy run there is none, and rows come from the pages of this node alone. At an
incident the report knows the ranks of all nodes, as they were when it was written.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from hangwatch.commands import MALFORMED
from hangwatch.commands.top.rows import Row, Trouble
from hangwatch.errors import ReportError
from hangwatch.model.calls import Site
from hangwatch.model.kinds import Phase
from hangwatch.report import schema
from hangwatch.report.files import REPORT, load_incident
from hangwatch.report.runs import read_run, run_files
from hangwatch.report.schema import Report
from hangwatch.watchdog import state
from hangwatch.watchdog.incident.stages import Stage

_ONGOING = frozenset({Stage.SLOW, Stage.HANG, Stage.FAILED})


@dataclass(frozen=True, slots=True)
class IncidentState:
    """The watchdog's state of the current incident, from the directory of the run."""

    stage: Stage = Stage.HEALTHY
    incidents: int = 0
    """Announced so far in this run."""
    report: Path | None = None
    """Directory of its report."""
    elsewhere: str = ""
    """The verdict, if the watchdog of another node has made it."""

    @property
    def ongoing(self) -> bool:
        """True if an incident was announced that is not over."""
        return self.stage in _ONGOING


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A stored report. ``written`` is in seconds of the epoch."""

    directory: Path
    written: float
    content: Report


def read_state(run_dir: Path) -> IncidentState:
    """Return the watchdog's state; that of a healthy run if none can be read."""
    with suppress(*MALFORMED):
        values = state.load(run_dir)
        judge, reporter = values["judge"], values["reporter"]
        incidents = judge["incidents"]
        stage = Stage(incidents.get("stage", Stage.HEALTHY))
        elsewhere = reporter.get("elsewhere") if judge["told_elsewhere"] else None
        where = str(elsewhere["report"] if elsewhere else reporter["report"])
        return IncidentState(
            stage,
            int(incidents.get("number", 0)),
            Path(where) if where else None,
            f"{elsewhere['headline']} (reported by {elsewhere['node']})" if elsewhere else "",
        )
    return IncidentState()


def read_report(current: IncidentState) -> StoredReport | None:
    """Return the report of the current incident, None if there is none to read."""
    if current.ongoing and current.report is not None:
        with suppress(ReportError, OSError, RecursionError):
            return _read_report(current.report, (current.report / REPORT).lstat().st_mtime)
    return None


@lru_cache(maxsize=1)
def _read_report(directory: Path, written: float) -> StoredReport:
    """Read a report, but only once as long as it does not change. Raises as load()."""
    directory, content = load_incident(directory)
    return StoredReport(directory, written, content)


def headline(current: IncidentState, report: StoredReport | None) -> tuple[str, str]:
    """Return ``HANG (likely)`` and the verdict's sentence; two empty texts if there is none."""
    if not current.ongoing:
        return "", ""
    word = current.stage.upper()
    if report is not None:
        with suppress(*MALFORMED):
            verdict = report.content["verdict"]
            return f"{word} ({verdict['certainty']})", str(verdict["headline"])
    return word, current.elsewhere or "its report cannot be read"


def with_report(rows: Iterable[Row], report: StoredReport, now: float) -> list[Row]:
    """Add to the rows of this node what only the report knows, and the ranks of other nodes.

    now: seconds of the epoch.
    """
    here = list(rows)
    with suppress(*MALFORMED):
        content = report.content
        reported = {entry["rank"]: entry for entry in content["ranks"]}
        known = {rank for row in here for rank in row.ranks}
        local = [_completed(row, reported.get(row.ranks[0]), content["verdict"]) for row in here]
        age_s = max(0.0, now - report.written)
        others = [
            _reported_row(entry, content, age_s)
            for rank, entry in reported.items()
            if rank not in known
        ]
        return [*local, *others]
    return here


def _completed(row: Row, entry: schema.Rank | None, verdict: schema.Verdict) -> Row:
    """Mark a culprit of this node, and name calls that C++ has issued."""
    if row.ranks[0] in verdict["culprits"]:
        does = row.does or _words(verdict["reason"]) or _words(verdict["kind"])
        alone = len(verdict["culprits"]) == 1
        site = _site(verdict["site"]) if alone else _site(entry["site"] if entry else None)
        return replace(row, trouble=Trouble.CULPRIT, does=does, site=row.site or site)
    stuck = entry["stuck_in"] if entry else None
    if row.trouble is Trouble.WAITS and row.site is None and stuck:
        group, site = str(stuck["group"] or ""), _site(stuck["site"])
        return replace(row, does=_call(stuck), group=group, site=site)
    return row


def _reported_row(entry: schema.Rank, content: Report, age_s: float) -> Row:
    """Return the row of a rank that only the report knows; age_s: of the report."""
    verdict = content["verdict"]
    stuck, process = entry["stuck_in"], entry["process"]
    trouble, does, waits_s = Trouble.NONE, "", None
    if not process["alive"]:
        does = "exited" if process["exit_code"] == 0 else "gone"
        trouble = Trouble.NONE if does == "exited" else Trouble.ODD
    elif stuck:
        trouble, does, waits_s = Trouble.WAITS, _call(stuck), float(stuck["age_s"]) + age_s
    elif Phase(entry["phase"]) is not Phase.RUNNING:
        does = str(entry["phase"])
    if entry["rank"] in verdict["culprits"]:
        trouble, does = Trouble.CULPRIT, does or _words(verdict["reason"])
    groups = [
        (str(group["desc"] or group["name"]), group)
        for group in entry["groups"]
        if group["alive"] and group["enqueued"]
    ]
    behind, behind_in = max(
        ((_lag(group, content), name) for name, group in groups), default=(0, "")
    )
    return Row(
        ranks=(int(entry["rank"]),),
        trouble=trouble,
        node=str(entry["node"]),
        pid=int(entry["pid"]),
        does=does,
        group=str(stuck["group"] or "") if stuck and trouble is Trouble.WAITS else "",
        waits_s=waits_s,
        site=_site(stuck["site"] if stuck else entry["site"]),
        last=tuple(f"{name} #{group['enqueued']}" for name, group in groups),
        behind=behind,
        behind_in=behind_in if behind else "",
    )


def _lag(group: schema.GroupProgress, content: Report) -> int:
    """Return how far a group is behind its furthest member; 0 if the report does not say."""
    with suppress(*MALFORMED):
        furthest = content["groups"][group["id"]]["furthest"]
        return max(0, furthest - int(group["enqueued"])) if furthest is not None else 0
    return 0


def _call(stuck: schema.BlockedCall) -> str:
    return f"{stuck['op']} #{stuck['seq']}" if stuck["seq"] else str(stuck["op"])


def _site(content: schema.Site | None) -> Site | None:
    if not content:
        return None
    return Site(content["file"], content["line"], content["function"], content["source"])


def _words(name: str | None) -> str:
    return "" if not name or name == "unknown" else name.replace("_", " ")


def ending(report_dir: Path | None, watch: str) -> tuple[str, int]:
    """Return how a run ended, for people, and the number of incidents that it has left.

    From the run.json of its watch; ("", 0) if there is none.
    """
    for path in run_files(report_dir) if report_dir else ():
        with suppress(OSError, *MALFORMED):
            content = read_run(path)
            if content["watch"] == watch:
                return f"exit code {int(content['exit_code'])}", len(content["incidents"])
    return "", 0
