"""The current straggler, as the watchdog knows it: it makes the job slow, and nothing hangs."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hangwatch.commands import MALFORMED
from hangwatch.commands.top.rows import Row, Trouble
from hangwatch.errors import ReportError
from hangwatch.model.codec import CodecError, decode
from hangwatch.model.kinds import Reason
from hangwatch.model.report import Straggler
from hangwatch.report.directories import Kind, number_of, numbered
from hangwatch.report.files import load
from hangwatch.report.straggler_schema import STRAGGLER_SCHEMA
from hangwatch.report.wording import straggler_headline
from hangwatch.text import percent, words
from hangwatch.watchdog import state


def read_straggler(run_dir: Path) -> Straggler | None:
    """Return the current straggler of a run, None if there is none, or none can be read."""
    with suppress(CodecError, *MALFORMED):
        current = state.load(run_dir)["stragglers"]["current"]
        straggler: Straggler | None = current and decode(Straggler, current, lenient=True)
        return straggler
    return None


def headline(straggler: Straggler) -> tuple[str, str]:
    """Return ``STRAGGLER (34 % of the time)`` and a sentence."""
    share = percent(straggler.fraction)
    return f"STRAGGLER ({share} of the time)", straggler_headline(straggler.ranks)


def with_straggler(rows: Iterable[Row], straggler: Straggler) -> list[Row]:
    """Mark the rows of the straggler; the line is that of the rank that was profiled."""
    why = straggler.why
    does = "" if why.reason is Reason.UNKNOWN else words(why.reason)
    return [
        row
        if row.ranks[0] not in straggler.ranks
        else replace(
            row,
            trouble=Trouble.CULPRIT,
            does=does,
            site=why.site if row.ranks[0] == straggler.ranks[0] else row.site,
        )
        for row in rows
    ]


def report_of(straggler: Straggler, report_dir: Path) -> Path | None:
    """Return the directory of its report, None if this node has written none."""
    with suppress(ReportError, OSError, ValueError, *MALFORMED):
        newest = max(numbered(report_dir, Kind.STRAGGLER), key=number_of)
        where, content = load(report_dir / newest)
        if content["schema"] == STRAGGLER_SCHEMA:
            is_it = tuple(content["straggler"]["ranks"]) == straggler.ranks
            return where if is_it else None
    return None
