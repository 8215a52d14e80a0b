"""``hangwatch analyze``: judges a job from Flight Recorder dumps and rank pages.

Takes files or directories (an incident's too), makes the snapshot that the watchdog would
make, and calls the same diagnosis.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TypeVar

from hangwatch import __version__
from hangwatch.commands import Arguments, print_lines, timing
from hangwatch.console import say
from hangwatch.diagnosis import diagnose
from hangwatch.errors import FlightError, PageError, UsageError
from hangwatch.evidence.flight import job_snapshot, newest, parse_dump
from hangwatch.evidence.flight.entries import FlightDump
from hangwatch.evidence.pages.reader import SUFFIX, parse_page
from hangwatch.evidence.snapshot import rank_snapshot
from hangwatch.model.codec import CodecError, decode
from hangwatch.model.kinds import Certainty, Phase, State
from hangwatch.model.page import MAX_WORLD, RankPage
from hangwatch.model.report import Evidence, RunInfo
from hangwatch.model.snapshot import JobSnapshot, ProcessState, Thresholds
from hangwatch.model.verdict import Verdict
from hangwatch.report.build import build_report
from hangwatch.report.files import REPORT
from hangwatch.report.schema import SCHEMA
from hangwatch.report.terminal import Style, format_verdict
from hangwatch.safety import untrusted
from hangwatch.text import ranks_text

DESCRIPTION = """\
Judge Flight Recorder dumps (pickle or JSON; any name that ends in the rank), rank pages, or
the incident of a report. The exit code is 0 whether or not there is a verdict."""
MAX_FILE_BYTES = 64 << 20
MAX_FILES = 100_000
MAX_DEPTH = 4
"""Directories below a named one that are searched: an incident is two deep."""
MAX_ALL_ENTRIES = 2_000_000
"""Recorder entries kept in memory, of all files together."""
LEAST_ENTRIES = 500

_RANK = re.compile(r"(\d{1,7})(?:\.[A-Za-z]\w*)?$")
_NO_DUMP = {".txt", ".html", ".log", ".md", ".py", ".csv", ".out", ".err"}
"""Files in a directory that are not tried although their names may end in a number."""
_EXIT_CODES = {Phase.EXITED: 0, Phase.RAISED: 1}


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Dump:
    """A Flight Recorder dump and the time its file was written."""

    content: FlightDump
    written_unix_ns: int


@dataclass(slots=True)
class Inputs:
    """All files that could be read."""

    dumps: dict[int, Dump] = field(default_factory=dict)
    pages: dict[int, RankPage] = field(default_factory=dict)
    processes: dict[int, ProcessState] = field(default_factory=dict)
    """The processes of an incident, from the report that lies next to their pages."""
    unreadable: list[str] = field(default_factory=list)
    """Files that could not be read, each with the reason."""


def analyze(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Judge what a job has left. Raises UsageError, and FlightError if nothing can be read."""
    parser = Arguments("analyze", DESCRIPTION)
    parser.add_argument("paths", metavar="PATH", nargs="+", type=Path, help="file or directory")
    parser.add_argument("--json", action="store_true", help="print a report.json")
    given = parser.parse_args(words)
    evidence, unreadable = judge(given.paths)
    content = build_report(evidence)
    if given.json or content["verdict"]["state"] == "ok":  # else they are in what is printed
        for reason in unreadable:
            say(reason)
    if given.json:
        print_lines([json.dumps(content, indent=1)])
    else:
        print_lines(format_verdict(content, style=Style.of(sys.stdout, environ), stored=False))
    return 0


def judge(paths: Sequence[Path]) -> tuple[Evidence, tuple[str, ...]]:
    """Judge the files at paths; also return which could not be read, with the reasons.

    Raises UsageError if none could.
    """
    inputs = _read(paths)
    if not inputs.dumps and not inputs.pages:
        raise UsageError(
            inputs.unreadable[0]
            if inputs.unreadable
            else f"{paths[0]} holds no Flight Recorder dump and no rank page: the name of a dump "
            "ends in its rank, such as nccl_trace_rank_3, rank_3.json or trace_3.pkl"
        )
    job, timed = _snapshot(inputs)
    limits = (timing.ANALYZE_SUSPECT_S, timing.ANALYZE_HANG_S) if timed else (0.0, 0.0)
    known = {rank.rank for rank in job.ranks}
    verdicts = _without_the_unknown(diagnose(job, Thresholds(*limits)), known)
    if verdicts[0].state is State.OK:
        # The files may just not show it: that is no proof.
        verdicts = (replace(verdicts[0], certainty=Certainty.LIKELY),)
    absent = [rank for rank in range(job.world_size) if rank not in known]
    no_data = [f"no data for {ranks_text(absent)}"] if absent else []
    at = max((dump.written_unix_ns for dump in inputs.dumps.values()), default=0) / 1e9
    detected = datetime.fromtimestamp(at, UTC) if at else datetime.now(UTC)
    evidence = Evidence(
        run=RunInfo(str(paths[0]), (), "", {"hangwatch": __version__}),
        job=replace(job, unseen=(*job.unseen, *inputs.unreadable, *no_data)),
        verdicts=verdicts,
        detected_at=detected.isoformat(timespec="milliseconds"),
        detected_after_s=verdicts[0].stuck_age_s,
    )
    return evidence, tuple(inputs.unreadable)


def _read(paths: Sequence[Path]) -> Inputs:
    """Read every file, and go on if one cannot be read. Raises UsageError."""
    named = frozenset(paths)
    files = list(islice(_files(paths), MAX_FILES))
    inputs = Inputs()
    keep = max(LEAST_ENTRIES, MAX_ALL_ENTRIES // max(1, len(files)))
    for path in files:
        try:
            # A path that the user has named may be a link; the files found below may not.
            content, written_ns = _content(path, follow=path in named)
            if path.name == REPORT:
                inputs.processes |= _processes(content)
            elif path.suffix == SUFFIX:
                page = parse_page(content)
                _keep(inputs.pages, page.identity.rank, page, _page_worth)
            else:
                dump = Dump(parse_dump(content, keep), written_ns)
                _keep(inputs.dumps, _rank_of(path), dump, _dump_worth)
        except (FlightError, PageError, CodecError) as error:
            inputs.unreadable.append(f"{path}: {error}")
        except OSError as error:
            inputs.unreadable.append(f"{path} cannot be read: {error.strerror or error}")
    return inputs


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from _within(path)
        elif not path.exists():
            raise UsageError(f"{path} does not exist")
        elif path.suffix != SUFFIX and path.name != REPORT and _RANK.search(path.name) is None:
            raise UsageError(
                f"{path}: the name of a dump has to end in its rank, such as rank_3 or rank_3.json"
            )
        else:
            yield path


def _within(top: Path) -> Iterator[Path]:
    """Yield the files below a directory that may be dumps or pages, in the order of their names."""
    for where, directories, names in os.walk(top):
        depth = len(Path(where).relative_to(top).parts)
        directories[:] = sorted(directories) if depth < MAX_DEPTH else []
        for name in sorted(names):
            path = Path(where, name)
            dump = path.suffix not in _NO_DUMP and _RANK.search(name) is not None
            ours = path.suffix == SUFFIX or name == REPORT
            if not name.startswith(".") and (dump or ours):
                yield path


def _content(path: Path, *, follow: bool) -> tuple[bytes, int]:
    """Return the bytes of a file, and its time in ns. Raises OSError and FlightError."""
    fd = untrusted.open_file(path, follow=follow)
    try:
        info = os.fstat(fd)
        data = b"" if info.st_size > MAX_FILE_BYTES else untrusted.read_from(fd, MAX_FILE_BYTES + 1)
    finally:
        os.close(fd)
    size = max(info.st_size, len(data))
    if size > MAX_FILE_BYTES:
        raise FlightError(
            f"it has {size} bytes, more than {MAX_FILE_BYTES}: dump with a smaller "
            "TORCH_FR_BUFFER_SIZE, or without stacks"
        )
    return data, info.st_mtime_ns


def _processes(data: bytes) -> dict[int, ProcessState]:
    """Return the processes of a report.json, by rank. Raises CodecError."""
    try:
        report = untrusted.parse_json(data)
    except ValueError as error:
        raise CodecError(f"no JSON: {error}") from error
    ranks = report.get("ranks") if isinstance(report, dict) else None
    if not isinstance(ranks, list) or report.get("schema") != SCHEMA:
        return {}  # another program's report
    return {
        decode(int, rank.get("rank")): decode(ProcessState, rank.get("process"))
        for rank in ranks
        if isinstance(rank, dict)
    }


def _rank_of(path: Path) -> int:
    digits = _RANK.search(path.name)
    if digits is None or int(digits[1]) >= MAX_WORLD:
        raise FlightError(f"its name ends in no rank: no job has more than {MAX_WORLD}")
    return int(digits[1])


def _keep(best: dict[int, T], rank: int, item: T, worth: Callable[[T], tuple[int, ...]]) -> None:
    """Keep the better of two dumps or pages of a rank."""
    if rank not in best or worth(item) > worth(best[rank]):
        best[rank] = item


def _dump_worth(dump: Dump) -> tuple[int, ...]:
    """Prefer the newer dump, then the one with more in it."""
    entries = dump.content.entries
    return newest(dump.content), any(entry.frames for entry in entries), len(entries)


def _page_worth(page: RankPage) -> tuple[int, ...]:
    """Prefer the page of the later restart, then the newer one."""
    return page.identity.restart, page.phase is not Phase.BORN, page.created_ns


def _snapshot(inputs: Inputs) -> tuple[JobSnapshot, bool]:
    """Return the job, and True if its ages are reliable."""
    dumps = {rank: dump.content for rank, dump in inputs.dumps.items()}
    taken = _taken(inputs.dumps)
    if not inputs.pages:
        return job_snapshot(dumps, taken), bool(taken)
    # All pages of a node count from its last boot; each of several nodes has its own newest.
    now_ns: dict[str, int] = defaultdict(int)
    for page in inputs.pages.values():
        last_ns = max(page.heartbeat_ns, page.gil_ns, page.phase_ns, page.created_ns)
        now_ns[page.identity.host] = max(now_ns[page.identity.host], last_ns)
    ranks = {
        rank: rank_snapshot(
            page,
            inputs.processes.get(rank)
            or ProcessState(page.phase not in _EXIT_CODES, exit_code=_EXIT_CODES.get(page.phase)),
            page.identity.host,
            now_ns[page.identity.host],
            flight=dumps.get(rank),
        )
        for rank, page in inputs.pages.items()
    }
    size = max(page.identity.world_size for page in inputs.pages.values())
    rest = {rank: dump for rank, dump in dumps.items() if rank not in ranks}
    others = job_snapshot(rest, taken) if rest else JobSnapshot(0, ())
    everyone = sorted([*ranks.values(), *others.ranks], key=lambda rank: rank.rank)
    job = JobSnapshot(
        world_size=max(size, others.world_size),
        ranks=tuple(everyone),
        restart=max(page.identity.restart for page in inputs.pages.values()),
        unseen=("pages hold calls, not stacks", *others.unseen),
    )
    return job, True


def _taken(dumps: Mapping[int, Dump]) -> dict[int, int]:
    """Return the time of each dump, by its file; nothing if one was copied since."""
    for dump in dumps.values():
        last_ns = newest(dump.content)
        if last_ns and not 0 <= dump.written_unix_ns - last_ns <= timing.DUMP_COPIED_S * 1e9:
            return {}
    return {rank: dump.written_unix_ns for rank, dump in dumps.items()}


def _without_the_unknown(verdicts: tuple[Verdict, ...], known: set[int]) -> tuple[Verdict, ...]:
    """Leave out verdicts on ranks without any data, if others explain the hang."""
    explained = tuple(
        verdict for verdict in verdicts if not verdict.culprits or known & set(verdict.culprits)
    )
    return explained if any(verdict.culprits for verdict in explained) else verdicts
