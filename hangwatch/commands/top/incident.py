"""The incident at hand: where the watchdog keeps it, and what its report adds to the rows.

On a healthy run there is none, and rows come from the pages of this node alone. At an
incident the report knows the ranks of all nodes, as they were when it was written.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hangwatch.commands.top.view import Row, Trouble
from hangwatch.errors import ReportError
from hangwatch.model.calls import Site
from hangwatch.model.kinds import Phase
from hangwatch.report import schema
from hangwatch.report.files import load, read_run, run_files
from hangwatch.report.schema import Report
from hangwatch.watchdog import state
from hangwatch.watchdog.incident.incidents import Stage

ODD = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError),
    *(RecursionError, OverflowError),
)
"""What reading values raises that hangwatch has not written so."""
_AT_HAND = frozenset({Stage.SLOW, Stage.HANG, Stage.FAILED})
_ENDED = frozenset({Phase.EXITED, Phase.RAISED})


@dataclass(frozen=True, slots=True)
class Kept:
    """What the watchdog keeps of the incident at hand in the directory of the run."""

    stage: Stage = Stage.HEALTHY
    incidents: int = 0
    """Announced so far in this run."""
    report: Path | None = None
    """Directory of its report."""
    elsewhere: str = ""
    """The verdict, where the watchdog of another node has made it."""

    @property
    def at_hand(self) -> bool:
        """Whether people have been told of an incident that is not over."""
        return self.stage in _AT_HAND


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A stored report. ``written`` is in seconds of the epoch."""

    where: Path
    written: float
    content: Report


def kept(run_dir: Path) -> Kept:
    """What the watchdog keeps; a healthy run where it has left nothing that can be read."""
    with suppress(*ODD):
        values = state.load(run_dir)
        judge, reporter = values["judge"], values["reporter"]
        incidents = judge["incidents"]
        stage = Stage(incidents.get("stage", Stage.HEALTHY))
        told = reporter.get("elsewhere") if judge["told_elsewhere"] else None
        where = str(told["report"] if told else reporter["report"])
        return Kept(
            stage,
            int(incidents.get("number", 0)),
            Path(where) if where else None,
            f"{told['headline']} (said {told['node']})" if told else "",
        )
    return Kept()


class Reports:
    """Reads the report of an incident anew only when it has changed."""

    def __init__(self) -> None:
        self._last: StoredReport | None = None

    def of(self, found: Kept) -> StoredReport | None:
        """The report of the incident at hand, None where it cannot be had."""
        if not found.at_hand or found.report is None:
            return None
        try:
            written = (found.report / "report.json").lstat().st_mtime
            if self._last and (self._last.where, self._last.written) == (found.report, written):
                return self._last
            where, content = load(found.report)
        except (ReportError, OSError, RecursionError):
            return None
        self._last = StoredReport(where, written, content)
        return self._last


def headline(found: Kept, report: StoredReport | None) -> tuple[str, str]:
    """``HANG (likely)`` and the sentence of the verdict; two empty texts without one."""
    if not found.at_hand:
        return "", ""
    word = found.stage.upper()
    if report is not None:
        with suppress(*ODD):
            verdict = report.content["verdict"]
            return f"{word} ({verdict['certainty']})", str(verdict["headline"])
    return word, found.elsewhere or "its report cannot be read"


def with_report(rows: Iterable[Row], report: StoredReport, now: float) -> list[Row]:
    """Rows of this node with what only the report knows, and those of the other nodes.

    now: seconds of the epoch.
    """
    here = list(rows)
    with suppress(*ODD):
        content = report.content
        told = {entry["rank"]: entry for entry in content["ranks"]}
        known = {rank for row in here for rank in row.ranks}
        local = [_completed(row, told.get(row.ranks[0]), content["verdict"]) for row in here]
        age_s = max(0.0, now - report.written)
        others = [_row(entry, content, age_s) for rank, entry in told.items() if rank not in known]
        return [*local, *others]
    return here


def _completed(row: Row, told: schema.Rank | None, verdict: schema.Verdict) -> Row:
    """A rank of this node: a culprit is marked, and C++ calls get their names."""
    if row.ranks[0] in verdict["culprits"]:
        does = row.does or _words(verdict["reason"]) or _words(verdict["kind"])
        alone = len(verdict["culprits"]) == 1
        site = _site(verdict["site"]) if alone else _site(told["site"] if told else None)
        return replace(row, trouble=Trouble.CULPRIT, does=does, site=row.site or site)
    stuck = told["stuck_in"] if told else None
    if row.trouble is Trouble.WAITS and row.site is None and stuck:
        group, site = str(stuck["group"] or ""), _site(stuck["site"])
        return replace(row, does=_call(stuck), group=group, site=site)
    return row


def _row(entry: schema.Rank, content: Report, age_s: float) -> Row:
    """A rank that only the report knows; content: of the report, age_s: how old that is."""
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
    groups = [group for group in entry["groups"] if group["alive"] and group["enqueued"]]
    behind, behind_in = max(
        ((_lag(group, content), _name(group)) for group in groups), default=(0, "")
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
        last=tuple(f"{_name(group)} #{group['enqueued']}" for group in groups),
        behind=behind,
        behind_in=behind_in if behind else "",
    )


def _name(group: schema.GroupProgress) -> str:
    return str(group["desc"] or group["name"])


def _lag(group: schema.GroupProgress, content: Report) -> int:
    """How far it is behind the furthest member; 0 in a report that does not tell."""
    with suppress(*ODD):
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
    """How a run ended, for people, and how many incidents it has left.

    From the run.json that its watch has written; empty where there is none.
    """
    for path in run_files(report_dir) if report_dir else ():
        with suppress(OSError, *ODD):
            content = read_run(path)
            if content["watch"] == watch:
                return f"exit code {int(content['exit_code'])}", len(content["incidents"])
    return "", 0
