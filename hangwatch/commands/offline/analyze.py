"""``hangwatch analyze``: judges a job from what its ranks left behind.

Takes Flight Recorder dumps and rank pages, as files or directories (an incident's too),
makes the snapshot that the watchdog would make, and asks the same diagnosis.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from hangwatch import __version__
from hangwatch.diagnosis import diagnose
from hangwatch.errors import FlightError, PageError, UsageError
from hangwatch.evidence.flight import job_snapshot, newest, parse_dump
from hangwatch.evidence.flight.entries import FlightDump
from hangwatch.evidence.page import SUFFIX, parse_page
from hangwatch.evidence.snapshot import rank_snapshot
from hangwatch.model.codec import CodecError, decode
from hangwatch.model.kinds import Certainty, Phase, State
from hangwatch.model.page import MAX_WORLD, RankPage
from hangwatch.model.report import Evidence, RunInfo
from hangwatch.model.snapshot import JobSnapshot, ProcessState, RankSnapshot, Thresholds
from hangwatch.model.verdict import Verdict
from hangwatch.report.schema import SCHEMA
from hangwatch.safety import untrusted
from hangwatch.text import fold_ranks

REPORT = "report.json"
MAX_FILE_BYTES = 64 << 20
MAX_FILES = 100_000
MAX_DEPTH = 4
"""Directories below a named one that are searched: an incident is two deep."""
MAX_ALL_ENTRIES = 2_000_000
"""Recorder entries kept in memory, of all files together."""
LEAST_ENTRIES = 500
LONGEST_S = 86400.0
"""A file written so long after its last call was copied since, and tells no time."""
SUSPECT_AFTER_S = 1.0
HANG_AFTER_S = 3.0
"""Shorter than live: who asks has seen it stuck. What was made just before a dump still runs."""

_RANK = re.compile(r"(\d{1,7})(?:\.[A-Za-z]\w*)?$")
_NO_DUMP = {".txt", ".html", ".log", ".md", ".py", ".csv", ".out", ".err"}
"""Files in a directory that are not tried although their names may end in a number."""
_OVER = {Phase.EXITED: 0, Phase.RAISED: 1}


@dataclass(frozen=True, slots=True)
class Dump:
    """A Flight Recorder dump and when its file was written."""

    content: FlightDump
    written_unix_ns: int


@dataclass(slots=True)
class Found:
    """All that could be read."""

    dumps: dict[int, Dump] = field(default_factory=dict)
    pages: dict[int, RankPage] = field(default_factory=dict)
    processes: dict[int, ProcessState] = field(default_factory=dict)
    """What the report of an incident says of the processes whose pages lie beside it."""
    unreadable: list[str] = field(default_factory=list)
    """What is wrong with which file."""


def analyze(paths: Sequence[Path]) -> tuple[Evidence, tuple[str, ...]]:
    """Judge what lies at paths; also returns what could not be read of it, and why.

    Raises UsageError where nothing could.
    """
    found = read(paths)
    if not found.dumps and not found.pages:
        raise UsageError(
            found.unreadable[0]
            if found.unreadable
            else f"{paths[0]} holds no Flight Recorder dump and no rank page: the name of a dump "
            "ends in its rank, such as nccl_trace_rank_3, rank_3.json or trace_3.pkl"
        )
    job, timed = snapshot(found)
    thresholds = Thresholds(SUSPECT_AFTER_S, HANG_AFTER_S) if timed else Thresholds(0.0, 0.0)
    verdicts = _without_the_unknown(diagnose(job, thresholds), job)
    if verdicts[0].state is State.OK:
        # That nothing shows in what was left behind is no proof.
        verdicts = (replace(verdicts[0], certainty=Certainty.LIKELY),)
    at = max((dump.written_unix_ns for dump in found.dumps.values()), default=0) / 1e9
    detected = datetime.fromtimestamp(at, UTC) if at else datetime.now(UTC)
    evidence = Evidence(
        run=RunInfo(str(paths[0]), (), "", {"hangwatch": __version__}),
        job=replace(job, unseen=(*job.unseen, *found.unreadable, *_not_there(job))),
        verdicts=verdicts,
        detected_at=detected.isoformat(timespec="milliseconds"),
        detected_after_s=verdicts[0].stuck_age_s,
    )
    return evidence, tuple(found.unreadable)


def read(paths: Sequence[Path]) -> Found:
    """Read every file, and keep going where one cannot be read. Raises UsageError."""
    named = frozenset(paths)
    files = list(islice(_files(paths), MAX_FILES))
    found = Found()
    keep = max(LEAST_ENTRIES, MAX_ALL_ENTRIES // max(1, len(files)))
    for path in files:
        try:
            # What the operator has named may be a link; what lies beside it leads nowhere.
            content, written_ns = _content(path, follow=path in named)
            if path.name == REPORT:
                found.processes |= _processes(content)
            elif path.suffix == SUFFIX:
                _keep_page(found.pages, parse_page(content))
            else:
                dump = Dump(parse_dump(content, keep), written_ns)
                _keep_dump(found.dumps, _rank_of(path), dump)
        except (FlightError, PageError, CodecError) as error:
            found.unreadable.append(f"{path}: {error}")
        except OSError as error:
            found.unreadable.append(f"{path} cannot be read: {error.strerror or error}")
    return found


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
    """The files below a directory that may be dumps or pages, in the order of their names."""
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
    """The bytes of a file, and when it was written. Raises OSError and FlightError."""
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
    """The processes of a report.json, by rank. Raises CodecError."""
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
    if digits is None:
        raise FlightError("its name does not end in a rank")
    if int(digits[1]) >= MAX_WORLD:
        raise FlightError(f"its name ends in no rank: no job has more than {MAX_WORLD}")
    return int(digits[1])


def _keep_dump(dumps: dict[int, Dump], rank: int, dump: Dump) -> None:
    """Of two dumps of a rank the newer one counts, then the one that tells more."""
    other = dumps.get(rank)
    if other is None or _worth(dump) > _worth(other):
        dumps[rank] = dump


def _worth(dump: Dump) -> tuple[int, bool, int]:
    entries = dump.content.entries
    return newest(dump.content), any(entry.frames for entry in entries), len(entries)


def _keep_page(pages: dict[int, RankPage], page: RankPage) -> None:
    """Of two pages of a rank that of the later restart counts, then the newer one."""
    other = pages.get(page.identity.rank)
    if other is None or _age_order(page) > _age_order(other):
        pages[page.identity.rank] = page


def _age_order(page: RankPage) -> tuple[int, bool, int]:
    return page.identity.restart, page.phase is not Phase.BORN, page.created_ns


def snapshot(found: Found) -> tuple[JobSnapshot, bool]:
    """The job, and whether its ages are to be relied on."""
    dumps = {rank: dump.content for rank, dump in found.dumps.items()}
    taken = _taken(found.dumps)
    if not found.pages:
        return job_snapshot(dumps, taken), bool(taken)
    # All pages of a node count from its last boot; of several nodes each has its own newest.
    now_ns: dict[str, int] = defaultdict(int)
    for page in found.pages.values():
        now_ns[page.identity.host] = max(now_ns[page.identity.host], _last_ns(page))
    ranks = {
        rank: rank_snapshot(
            page,
            found.processes.get(rank)
            or ProcessState(alive=page.phase not in _OVER, exit_code=_OVER.get(page.phase)),
            page.identity.host,
            now_ns[page.identity.host],
            flight=dumps.get(rank),
        )
        for rank, page in found.pages.items()
    }
    size = max(page.identity.world_size for page in found.pages.values())
    rest = {rank: dump for rank, dump in dumps.items() if rank not in ranks}
    others = job_snapshot(rest, taken) if rest else JobSnapshot(0, ())
    return (
        JobSnapshot(
            world_size=max(size, others.world_size),
            ranks=tuple(sorted([*ranks.values(), *others.ranks], key=_number)),
            restart=max(page.identity.restart for page in found.pages.values()),
            unseen=("pages hold calls, not stacks", *others.unseen),
        ),
        True,
    )


def _taken(dumps: Mapping[int, Dump]) -> dict[int, int]:
    """When each dump was taken, as far as its file tells; nothing if one was copied since."""
    found = {}
    for rank, dump in dumps.items():
        last_ns = newest(dump.content)
        if last_ns and not 0 <= dump.written_unix_ns - last_ns <= LONGEST_S * 1e9:
            return {}
        found[rank] = dump.written_unix_ns
    return found


def _last_ns(page: RankPage) -> int:
    """The newest moment that a page tells of: it was alive then."""
    return max(page.heartbeat_ns, page.gil_ns, page.phase_ns, page.created_ns)


def _number(rank: RankSnapshot) -> int:
    return rank.rank


def _without_the_unknown(verdicts: tuple[Verdict, ...], job: JobSnapshot) -> tuple[Verdict, ...]:
    """Leave out ranks of which nothing is known, where others explain the hang."""
    known = {rank.rank for rank in job.ranks}
    explained = tuple(
        verdict for verdict in verdicts if not verdict.culprits or known & set(verdict.culprits)
    )
    guilty = any(verdict.culprits for verdict in explained)
    return explained if guilty else verdicts


def _not_there(job: JobSnapshot) -> Iterable[str]:
    known = {rank.rank for rank in job.ranks}
    absent = [rank for rank in range(job.world_size) if rank not in known]
    if absent:
        yield f"nothing is there of rank{'s' * (len(absent) > 1)} {fold_ranks(absent)}"
