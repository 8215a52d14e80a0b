"""Reports stragglers: prints them, and writes their reports."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from hangwatch.console import News
from hangwatch.model.report import Straggler, StragglerEvidence, Stragglers
from hangwatch.report.files import write_straggler
from hangwatch.report.straggler import build_straggler_report
from hangwatch.report.straggler_schema import StragglerReport
from hangwatch.report.terminal import format_straggler, format_stragglers
from hangwatch.report.wording import slow_at, straggler_headline
from hangwatch.text import percent
from hangwatch.watchdog.incident.reporter import Reporter, StoredAt


@dataclass(slots=True)
class StragglerReporter:
    """Writes where its Reporter does."""

    reporter: Reporter
    _last: StragglerEvidence | None = None
    _files: StoredAt = field(default_factory=StoredAt)
    """Its report."""

    @property
    def news(self) -> News:
        """Where lines are printed."""
        return self.reporter.news

    async def tell(self, evidence: StragglerEvidence) -> None:
        """Write the report of a straggler and print it."""
        self._files = StoredAt()
        report = build_straggler_report(evidence)
        where = await self._write(evidence, report)
        reporter = self.reporter
        stored = reporter.report_dir is not None
        lines = format_straggler(report, where, reporter.style(), stored=stored)
        reporter.print_lines(lines)

    async def explain(self, evidence: StragglerEvidence) -> None:
        """Write the same report once more, with what was found later, and print this."""
        for text in slow_at(evidence.straggler.ranks[0], evidence.straggler.why):
            self.news.say(text)
        if self._last is not None:
            evidence = replace(evidence, detected_at=self._last.detected_at)
        await self._write(evidence)

    async def ended(self, straggler: Straggler) -> None:
        """Add to the report of this straggler what it has cost, if it is the last one."""
        last = self._last
        if last is None or self._files.path is None:
            return
        told = last.straggler
        if (told.ranks, told.since_s) == (straggler.ranks, straggler.since_s):
            await self._write(replace(last, straggler=replace(straggler, why=told.why)))

    def elsewhere(self, straggler: Straggler, host: str) -> None:
        """Print in one line that ranks of another node make the job slow."""
        share, what = percent(straggler.fraction), straggler_headline(straggler.ranks)
        why = slow_at(straggler.ranks[0], straggler.why)
        said = (f"STRAGGLER ({share} of the time)", what, *why, f"(reported by node {host})")
        self.news.say(" ".join(said))

    def conclude(self, stragglers: Stragglers) -> None:
        """Print what stragglers have cost the run, if there were any."""
        self.reporter.print_lines(format_stragglers(stragglers, self.reporter.style()))

    async def _write(
        self, evidence: StragglerEvidence, report: StragglerReport | None = None
    ) -> Path | None:
        self._last = evidence
        write = partial(write_straggler, evidence=evidence, report=report)
        return await self.reporter.keep(write, self._files)
