"""How precisely a diagnosis names the rank at fault, by kind of fault: make precision.

    python tests/property/precision.py            measure, and compare with what is recorded
    python tests/property/precision.py --record   keep what is better now

Simulated jobs of fixed seeds, whose faults are known, are judged when nothing moves any
more: with all evidence, and with some of it taken away. Of each kind of fault the table shows

jobs        with such a fault that hangs or ends the job
tied        whose first verdict names them and as many others, as "possible": of two of a kind
            nothing tells which it is
exact       of the others the share whose first verdict names the ranks at fault, and nobody else
candidates  how many ranks are named, on average, where somebody is
missed      the share in which no rank at fault is named
accused     jobs in which somebody else is named, and not as "possible" only
causes      exact ones in which a line of the program, or what it is, was planted as the cause
explained   of them the share in which it is the cause that is told first
among       the share in which it is told at all
misled      of them those in which another cause is told, and not as "possible" only

What a diagnosis loses by naming fewer, or gains by naming everybody, shows in another
column. precision.json holds the counts that were reached: none may get worse.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from evidence import lessened
from training import Fault
from truth import Simulated, simulate
from views import Sight

from hangwatch.diagnosis import diagnose
from hangwatch.model.kinds import Certainty
from hangwatch.model.snapshot import Thresholds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hangwatch.model.snapshot import JobSnapshot
    from hangwatch.model.verdict import RootCause, Verdict

    Judge = Callable[[JobSnapshot], tuple[Verdict, ...]]
    Counts = Mapping[str, Mapping[str, Mapping[str, int]]]
    """Evidence -> kind of fault -> column -> count."""

JOBS = 2000
RECORD = Path(__file__).with_name("precision.json")
THRESHOLDS = Thresholds(suspect_after_s=10.0, hang_after_s=300.0)
HEALTHY = "healthy or slow"
SEVERAL = "several faults"
UNSEEN = "none that shows"
"""A fault that neither hangs nor ends its job."""
_BETTER_MORE = ("exact", "explained", "among")
_BETTER_LESS = ("tied", "named", "missed", "accused", "misled")


@dataclass(slots=True)
class Row:
    """What came of the jobs with one kind of fault; all are counts."""

    jobs: int = 0
    tied: int = 0
    exact: int = 0
    found: int = 0
    """Jobs in which somebody is named."""
    named: int = 0
    """Ranks that are named, of all jobs together."""
    missed: int = 0
    accused: int = 0
    causes: int = 0
    explained: int = 0
    among: int = 0
    misled: int = 0

    def add(self, of: Simulated, verdicts: Sequence[Verdict]) -> None:
        """Count one job."""
        named = {rank for verdict in verdicts for rank in verdict.culprits}
        self.jobs += 1
        self.tied += _is_tied(of, verdicts)
        self.exact += _is_exact(of, verdicts)
        self.found += bool(named)
        self.named += len(named)
        self.missed += _is_missed(of, verdicts, named)
        self.accused += any(
            verdict.certainty is not Certainty.POSSIBLE and not {*verdict.culprits} <= of.planted
            for verdict in verdicts
        )
        if verdicts and verdicts[0].cause and of.job.causes and _is_exact(of, verdicts):
            explained = _is_planted(of, verdicts[0].cause)
            self.causes += 1
            self.explained += explained
            several = verdicts[0].cause, *verdicts[0].cause.others
            self.among += any(_is_planted(of, cause) for cause in several)
            self.misled += _is_misled(of, verdicts[0].cause)

    def line(self, name: str) -> str:
        """One line of the table."""
        each = f"{self.named / self.found:10.2f}" if self.found else f"{'':10}"
        decided = self.jobs - self.tied
        exact = f"{self.exact / decided:8.1%}" if decided else f"{'':8}"
        missed = f"{self.missed / self.jobs:7.1%}"
        explained, among = (
            f"{count / self.causes:{width}.1%}" if self.causes else " " * width
            for count, width in ((self.explained, 10), (self.among, 7))
        )
        return (
            f"{name:16} {self.jobs:5} {self.tied:5} {exact} {each} {missed} {self.accused:8} "
            f"{self.causes:7} {explained} {among} {self.misled:7}\n"
        )


def _is_planted(of: Simulated, cause: RootCause) -> bool:
    line = cause.site.line if cause.site is not None else None
    return not of.job.causes.isdisjoint({(cause.what, line), (cause.what, None)})


def _is_misled(of: Simulated, cause: RootCause) -> bool:
    if cause.certainty is Certainty.POSSIBLE or _is_planted(of, cause):
        return False
    return cause.site is not None or cause.what not in {what for what, _ in of.job.causes}


def _is_tied(of: Simulated, verdicts: Sequence[Verdict]) -> bool:
    if not verdicts or verdicts[0].certainty is not Certainty.POSSIBLE:
        return False
    culprits = {*verdicts[0].culprits}
    return of.planted < culprits and len(culprits) == 2 * len(of.planted)


def _is_exact(of: Simulated, verdicts: Sequence[Verdict]) -> bool:
    if not verdicts or of.is_well:
        return not verdicts and not _shows(of)
    culprits = {*verdicts[0].culprits}
    return culprits == of.planted or (len(of.job.plans) > 1 and set() < culprits <= of.planted)


def _is_missed(of: Simulated, verdicts: Sequence[Verdict], named: set[int]) -> bool:
    return _shows(of) and (not verdicts or (bool(of.planted) and not named & of.planted))


def _shows(of: Simulated) -> bool:
    """Whether a job hangs or ends of a fault."""
    return not of.is_well and (bool(of.stuck()) or of.failed())


def kind_of(job: Simulated) -> str:
    """The row of a job."""
    if job.is_well:
        return HEALTHY
    if not _shows(job):
        return UNSEEN
    (fault, *others) = job.faults - {Fault.SLOW}
    return SEVERAL if others or len(job.job.plans) > 1 else str(fault)


def measure(numbers: Iterable[int], judge: Judge) -> dict[str, dict[str, Row]]:
    """Evidence -> kind of fault -> what came of its jobs; numbers: the seeds of the jobs."""
    tables: dict[str, dict[str, Row]] = {
        "all evidence": defaultdict(Row),
        "less evidence": defaultdict(Row),
    }
    for number in numbers:
        rng = Random(number)  # noqa: S311 (no secrets)
        job = simulate(rng)
        late = job.seen(job.quiet_s + rng.choice((12, 40, 350)), Sight())
        for table, seen in zip(tables.values(), (late, lessened(rng, late)), strict=True):
            table[kind_of(job)].add(job, judge(seen))
    return tables


def judged(job: JobSnapshot) -> tuple[Verdict, ...]:
    """The verdicts on a job that accuse."""
    return tuple(verdict for verdict in diagnose(job, THRESHOLDS) if verdict.kind is not None)


def counts(tables: Mapping[str, Mapping[str, Row]]) -> Counts:
    """Plain values of what was measured."""
    return {
        evidence: {kind: asdict(rows[kind]) for kind in sorted(rows)}
        for evidence, rows in tables.items()
    }


def worse(now: Counts, before: Counts) -> list[str]:
    """What has got worse, or is not measured any more, a line each."""
    rows_of = {(evidence, kind) for evidence, rows in now.items() for kind in rows}
    gone = [
        f"{evidence}, {kind}: no such job was made"
        for evidence, rows in before.items()
        for kind in rows
        if (evidence, kind) not in rows_of
    ]
    return gone + [
        f"{evidence}, {kind}: {column} {row[column]}, recorded {before[evidence][kind][column]}"
        for evidence, rows in now.items()
        for kind, row in rows.items()
        for column in _worse(row, before[evidence][kind])
    ]


def _worse(now: Mapping[str, int], before: Mapping[str, int]) -> list[str]:
    return [name for name in _BETTER_MORE if now[name] < before[name]] + [
        name for name in _BETTER_LESS if now[name] > before[name]
    ]


def main(arguments: Sequence[str]) -> int:
    """Measure, print, compare; 1 if anything has got worse."""
    found = measure(range(JOBS), judged)
    for evidence, rows in found.items():
        head = (
            f"{evidence:16} {'jobs':>5} {'tied':>5} {'exact':>8} candidates  missed  accused  "
            "causes  explained   among  misled"
        )
        sys.stdout.write(f"{head}\n")
        sys.stdout.writelines(rows[kind].line(kind) for kind in sorted(rows))
        sys.stdout.write("\n")
    now = counts(found)
    before = json.loads(RECORD.read_text())
    complaints = worse(now, before)
    sys.stdout.writelines(f"precision: worse than recorded: {line}\n" for line in complaints)
    if complaints:
        return 1
    if now != before and "--record" in arguments:
        RECORD.write_text(json.dumps(now, indent=1) + "\n")
    elif now != before:
        sys.stdout.write("precision: better than recorded: keep it with --record\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
