"""The snapshot of the whole job that is diagnosed, and the evidence of an incident's report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from hangwatch.diagnosis.facts.faults import meaning
from hangwatch.evidence import environment
from hangwatch.model.frames import know_trainers
from hangwatch.model.kinds import Phase
from hangwatch.model.page import MAX_WORLD
from hangwatch.model.report import Evidence, Moment, RasAnswer, RunInfo
from hangwatch.model.snapshot import JobSnapshot, ProcessState, RankSnapshot
from hangwatch.model.verdict import Verdict
from hangwatch.text import fold_ranks
from hangwatch.watchdog.incident.evidence import Collected
from hangwatch.watchdog.incident.incidents import Announce
from hangwatch.watchdog.incident.reporter import utc
from hangwatch.watchdog.peers.messages import Gathered
from hangwatch.watchdog.peers.reach import Missing

MAX_ERRORS = 32
"""Lines of the timeline about errors of GPUs."""
MAX_AGE_S = 30 * 86400.0
_IN_FLIGHT = re.compile(rb'"(?:comm_lib|nccl)_version": ?"(\d[\w.+-]{0,30})"')
"""NCCL's version in a Flight Recorder, from PyTorch 2.8 on and before."""


def whole_job(
    collected: Collected, gathered: Gathered | None, missing: Missing, why_unknown: str
) -> JobSnapshot:
    """Return the snapshot of all ranks, with those of lost nodes as far as they are known.

    gathered: None if no other node was asked. why_unknown: why a rank may be unknown.
    """
    others = gathered.others if gathered else ()
    world_size = min(collected.world_size, MAX_WORLD)
    ranks = {
        rank: RankSnapshot(
            rank, node.host, 0, Phase.RUNNING, ProcessState(alive=False), recorder=""
        )
        for node in missing.lost
        for rank in node.ranks
        if rank < world_size
    }
    ranks |= {rank.rank: rank for local in others for rank in local.ranks}
    ranks |= {rank.rank: rank for rank in collected.ranks}
    sources = {file: text for local in others for file, text in local.sources.items()}
    unseen = [*(gathered.unseen if gathered else ()), *(n for o in others for n in o.unseen)]
    unseen += missing.notes
    unknown = set(range(world_size)) - ranks.keys()
    if unknown:
        which = f"rank{'s' if len(unknown) > 1 else ''} {fold_ranks(unknown)}"
        unseen.append(f"{which}: {why_unknown}")
    return JobSnapshot(
        world_size=collected.world_size,
        ranks=know_trainers(ranks[rank] for rank in sorted(ranks)),
        restart=collected.restart,
        lost_nodes=tuple(sorted({node.host for node in missing.lost})),
        cut_off=missing.cut_off,
        unseen=tuple(unseen),
        sources={**sources, **collected.sources},
    )


@dataclass(frozen=True, slots=True)
class Judged:
    """One diagnosis with its evidence. ``round``: of the exchange, 0 for none."""

    verdicts: tuple[Verdict, ...]
    job: JobSnapshot
    collected: Collected
    round: int = 0
    ras: RasAnswer | None = None
    read_ns: int = 0
    """Beginning of the gathering (CLOCK_MONOTONIC)."""


@dataclass(frozen=True, slots=True)
class Detection:
    """First announcement of an incident: when, and how long after it began."""

    detected_at: str = ""
    """Empty before the first announcement."""
    detected_after_s: float = 0.0


@dataclass(slots=True)
class Account:
    """State of an incident from one announcement to the next."""

    run: RunInfo
    detection: Detection = Detection()
    _timeline: list[Moment] = field(default_factory=list)
    # The last that were known: of ranks that have ended there are none.
    _versions: dict[str, str] = field(default_factory=dict)
    _environment: dict[str, str] = field(default_factory=dict)
    _ras: RasAnswer | None = None
    _ras_at: str = ""

    @property
    def is_open(self) -> bool:
        """True if something has been announced."""
        return bool(self.detection.detected_at)

    def add(self, announce: Announce, verdict: Verdict) -> None:
        """Note an announcement."""
        if not self.is_open:
            self.detection = Detection(utc(), verdict.stuck_age_s)
            if verdict.waits:
                self._timeline.append(Moment(utc(verdict.stuck_age_s), "The longest wait begins."))
        self._timeline.append(Moment(utc(), f"{announce.upper()}: {verdict.headline}"))

    def evidence(self, judged: Judged, lost: Sequence[str]) -> Evidence:
        """Return the content of the report. lost: what hangwatch could not do."""
        pid = next((r.pid for r in judged.collected.ranks if r.process.alive), 0)
        if pid or not self._versions:
            self._versions = environment.versions(pid)
            self._environment = environment.job_environment(pid)
        if judged.ras is not None:
            self._ras, self._ras_at = judged.ras, utc()
        versions = self.run.versions | self._versions
        if nccl := _nccl_version(self._ras, judged.collected.flights.values()):
            versions["NCCL"] = nccl
        lines = (*_gpu_errors(judged.job), *_ras_lines(self._ras, self._ras_at))
        return Evidence(
            run=replace(self.run, versions=versions),
            job=judged.job,
            verdicts=judged.verdicts,
            detected_at=self.detection.detected_at,
            detected_after_s=self.detection.detected_after_s,
            pages=judged.collected.pages,
            flights=judged.collected.flights,
            environment=self._environment,
            ras=self._ras,
            timeline=tuple(sorted((*self._timeline, *lines), key=lambda line: line.at)),
            lost=tuple(lost),
            notes=judged.collected.notes,
        )


def _nccl_version(ras: RasAnswer | None, flights: Iterable[bytes]) -> str:
    """Return the version of NCCL by its own answer or by c10d's recorder; empty if unknown."""
    if ras is not None and ras.version:
        return ras.version
    version = next((match for raw in flights if (match := _IN_FLIGHT.search(raw))), None)
    return version[1].decode("ascii", "replace") if version else ""


def _ras_lines(ras: RasAnswer | None, at: str) -> Iterator[Moment]:
    """Yield the findings of NCCL's RAS service."""
    if ras is None:
        return
    who = f"NCCL {ras.version}".strip()
    findings = [f"{finding}." for finding in ras.findings]
    if not ras.complete:
        findings.append("it did not answer in full.")
    elif not findings:
        findings.append("all ranks answer and have launched the same; it does not look at GPUs.")
    for finding in findings:
        yield Moment(at, f"RAS of {who}: {finding}")


def _gpu_errors(job: JobSnapshot) -> Iterator[Moment]:
    """Yield the last report of each kind of error of a GPU by the driver, at its first rank."""
    errors = {
        (rank.node, rank.gpu.uuid, xid.number): (rank, rank.gpu, xid)
        for rank in reversed(job.ranks)
        if rank.gpu is not None
        for xid in rank.gpu.xids
    }
    for rank, gpu, xid in islice(errors.values(), MAX_ERRORS):
        at = utc(min(max(0.0, xid.age_s), MAX_AGE_S))
        times = f", {xid.count} times by now" if xid.count > 1 else ""
        what = f"Xid {xid.number} of GPU {gpu.index}: it {meaning(xid.number).what}{times}."
        yield Moment(at, what, rank.rank)
