"""The incident at hand as its report tells it: when it began, and what was said of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from hangwatch.diagnosis.xids import meaning
from hangwatch.types import Evidence, JobSnapshot, Moment, Verdict
from hangwatch.watchdog import environment
from hangwatch.watchdog.reporter import utc_now

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hangwatch.types import RunInfo
    from hangwatch.watchdog.evidence import Collected
    from hangwatch.watchdog.incidents import Announce


MAX_ERRORS = 32
"""Lines of the timeline that tell of errors of GPUs."""
MAX_AGE_S = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class Judged:
    """One diagnosis with what it was made from. ``round``: of the exchange, 0 for none."""

    verdicts: tuple[Verdict, ...]
    job: JobSnapshot
    collected: Collected
    round: int = 0


@dataclass(slots=True)
class Account:
    """What is kept of the incident from one announcement to the next."""

    run: RunInfo
    _detected_at: str = ""
    _detected_after_s: float = 0.0
    _timeline: list[Moment] = field(default_factory=list)

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
        return Evidence(
            run=replace(self.run, versions={**self.run.versions, **environment.versions(pid)}),
            job=judged.job,
            verdicts=judged.verdicts,
            detected_at=self._detected_at,
            detected_after_s=self._detected_after_s,
            pages=judged.collected.pages,
            flights=judged.collected.flights,
            environment=environment.job_environment(pid),
            timeline=tuple(
                sorted((*self._timeline, *_gpu_errors(judged.job)), key=lambda one: one.at)
            ),
            lost=tuple(lost),
        )

    def forget(self) -> None:
        """The incident is over; the next one has a report of its own."""
        self._detected_at, self._detected_after_s = "", 0.0
        self._timeline.clear()

    def export(self) -> dict[str, Any]:
        """Plain values for restore()."""
        return {"detected_at": self._detected_at, "detected_after_s": self._detected_after_s}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take over. Raises KeyError, TypeError or ValueError for what export() never gives."""
        self._detected_at = str(values["detected_at"])
        self._detected_after_s = float(values["detected_after_s"])


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
