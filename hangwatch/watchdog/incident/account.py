"""The incident at hand as its report tells it: when it began, and what was said of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from hangwatch.diagnosis.facts.faults import meaning
from hangwatch.evidence import environment
from hangwatch.model.report import Evidence, Moment, RasAnswer, RunInfo
from hangwatch.model.snapshot import JobSnapshot
from hangwatch.model.verdict import Verdict
from hangwatch.watchdog.incident.evidence import Collected
from hangwatch.watchdog.incident.incidents import Announce
from hangwatch.watchdog.incident.reporter import utc_now

MAX_ERRORS = 32
"""Lines of the timeline that tell of errors of GPUs."""
MAX_AGE_S = 30 * 86400.0
_IN_FLIGHT = re.compile(rb'"(?:comm_lib|nccl)_version": ?"(\d[\w.+-]{0,30})"')
"""What the recorder calls it, from PyTorch 2.8 on and before."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One diagnosis with what it was made from. ``round``: of the exchange, 0 for none."""

    verdicts: tuple[Verdict, ...]
    job: JobSnapshot
    collected: Collected
    round: int = 0
    ras: RasAnswer | None = None
    read_ns: int = 0
    """When the gathering began (CLOCK_MONOTONIC)."""


@dataclass(slots=True)
class Account:
    """What is kept of the incident from one announcement to the next."""

    run: RunInfo
    _detected_at: str = ""
    _detected_after_s: float = 0.0
    _timeline: list[Moment] = field(default_factory=list)
    # The last that there were: of ranks that have ended there are none.
    _versions: dict[str, str] = field(default_factory=dict)
    _environment: dict[str, str] = field(default_factory=dict)
    _ras: RasAnswer | None = None
    _ras_at: str = ""

    @property
    def is_open(self) -> bool:
        """Whether something has been announced."""
        return bool(self._detected_at)

    def add(self, announce: Announce, verdict: Verdict) -> None:
        """Note what is announced."""
        if not self.is_open:
            self._detected_at, self._detected_after_s = utc_now(), verdict.stuck_age_s
            if verdict.waits:
                began = datetime.now(UTC) - timedelta(seconds=verdict.stuck_age_s)
                at = began.isoformat(timespec="milliseconds")
                self._timeline.append(Moment(at, "The longest wait begins."))
        self._timeline.append(Moment(utc_now(), f"{announce.upper()}: {verdict.headline}"))

    def evidence(self, judged: Judged, lost: Sequence[str]) -> Evidence:
        """All that the report is made from. lost: what hangwatch could not do, for people."""
        pid = next((r.pid for r in judged.collected.ranks if r.process.alive), 0)
        if pid or not self._versions:
            self._versions = environment.versions(pid)
            self._environment = environment.job_environment(pid)
        if judged.ras is not None:
            self._ras, self._ras_at = judged.ras, utc_now()
        versions = self.run.versions | self._versions
        if nccl := _nccl_version(self._ras, judged.collected.flights.values()):
            versions["NCCL"] = nccl
        lines = (*_gpu_errors(judged.job), *_ras_lines(self._ras, self._ras_at))
        return Evidence(
            run=replace(self.run, versions=versions),
            job=judged.job,
            verdicts=judged.verdicts,
            detected_at=self._detected_at,
            detected_after_s=self._detected_after_s,
            pages=judged.collected.pages,
            flights=judged.collected.flights,
            environment=self._environment,
            ras=self._ras,
            timeline=tuple(sorted((*self._timeline, *lines), key=lambda one: one.at)),
            lost=tuple(lost),
            notes=judged.collected.notes,
        )

    def forget(self) -> None:
        """The incident is over; the next one has a report of its own."""
        self._detected_at, self._detected_after_s = "", 0.0
        self._timeline.clear()
        self._versions, self._environment, self._ras = {}, {}, None

    def export(self) -> dict[str, Any]:
        """Plain values for restore()."""
        return {"detected_at": self._detected_at, "detected_after_s": self._detected_after_s}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take over. Raises KeyError, TypeError or ValueError for what export() never gives."""
        self._detected_at = str(values["detected_at"])
        self._detected_after_s = float(values["detected_after_s"])


def _nccl_version(ras: RasAnswer | None, flights: Iterable[bytes]) -> str:
    """The NCCL that runs, by its own word or by that of c10d's recorder; empty if unknown."""
    if ras is not None and ras.version:
        return ras.version
    found = next((match for raw in flights if (match := _IN_FLIGHT.search(raw))), None)
    return found[1].decode("ascii", "replace") if found else ""


def _ras_lines(ras: RasAnswer | None, at: str) -> Iterator[Moment]:
    """What NCCL's RAS service has said, and when."""
    if ras is None:
        return
    who = f"NCCL {ras.version}".strip()
    for finding in ras.findings:
        yield Moment(at, f"RAS of {who}: {finding}.")
    if not ras.complete:
        yield Moment(at, f"RAS of {who}: it did not answer in full.")
    elif not ras.findings:
        what = "all ranks answer and have launched the same; it does not look at GPUs"
        yield Moment(at, f"RAS of {who}: {what}.")


def _gpu_errors(job: JobSnapshot) -> Iterator[Moment]:
    """When the driver last reported each kind of error of a GPU; at its first rank."""
    now = datetime.now(UTC)
    told = {
        (rank.node, rank.gpu.uuid, xid.number): (rank, rank.gpu, xid)
        for rank in reversed(job.ranks)
        if rank.gpu is not None
        for xid in rank.gpu.xids
    }
    for rank, gpu, xid in islice(told.values(), MAX_ERRORS):
        age_s = min(max(0.0, xid.age_s), MAX_AGE_S)
        at = (now - timedelta(seconds=age_s)).isoformat(timespec="milliseconds")
        times = f", {xid.count} times by now" if xid.count > 1 else ""
        what = f"Xid {xid.number} of GPU {gpu.index}: it {meaning(xid.number).what}{times}."
        yield Moment(at, what, rank.rank)
