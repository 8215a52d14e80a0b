"""What hangwatch knew whenever it told of a program of the zoo, to be judged again without it.

A recording is what ``diagnose`` or ``find_desync`` was given, as the watchdog had it
(hangwatch.model.snapshot.Recording). It is made by ``make corpus`` and never edited: where a
change of format makes it unreadable, or its program has changed, it is made anew.
"""

from __future__ import annotations

import hashlib
import re
import socket
import sys
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expectations import run
from harness import Result

from hangwatch.diagnosis import diagnose, find_desync
from hangwatch.model import codec
from hangwatch.model.kinds import State
from hangwatch.model.report import Evidence, RunInfo
from hangwatch.model.snapshot import Recording
from hangwatch.report.build import build_report

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from expectations import Expectation

    from hangwatch.model.snapshot import Thresholds
    from hangwatch.model.verdict import Verdict

ROOT = Path(__file__).parents[2]
RECORDED = Path(__file__).parent / "recorded"
ON_GPU = ROOT / "tests" / "gpu" / "programs"
"""Programs that need a GPU: what was recorded of them on one is judged without."""
OF_FRAMEWORKS = ROOT / "tests" / "frameworks" / "programs"
"""Programs that need frameworks: what was recorded of them is judged without."""
HERE = Path("/src")
"""What a recording calls the root of this repository."""
MAX_BYTES = 64 << 20
MAX_VALUES = 4_000_000
EAGER = ("--interval", "0.1", "--suspect-after", "0.05", "--hang-after", "1000")
"""For what is well: all that anybody waits for is told, once it has taken a second."""
_SUFFIX = ".json.z"
_TEMPORARY = re.compile(rb"/tmp/hangwatch-test-\w+")
_COMMENT = re.compile(rb"^#.*$", re.MULTILINE)
_CAUSES = re.compile(rb"\n+(?:\n# cause[^\n]*)+\n\Z")
"""At the end of a program, where it moves no line."""
_RUN = RunInfo("a run", (), "")


@dataclass(frozen=True, slots=True)
class Recorded:
    """All that was told in one run of a case, in its order."""

    case: Expectation
    how: str
    """By what the ranks were started, or what else was special."""
    program: bytes
    """What ``text_of`` was when it ran."""
    told: tuple[Recording, ...]


def record(
    case: Expectation, *, forked: bool, python: str = sys.executable
) -> tuple[Result, list[bytes]]:
    """Run a case; what came of it, and a recording of each time that something was told.

    python: that of the environment to run it in.
    """
    with tempfile.TemporaryDirectory() as moments:
        evidence = Path(moments, "evidence")
        evidence.mkdir()
        eager = EAGER if case.values["state"] == "ok" else ()
        env = {"HANGWATCH_TEST_HOOKS": moments}
        result = run(case, python, *eager, forked=forked, env=env)
        return result, [path.read_bytes() for path in sorted(evidence.iterdir())]


def recorded(cases: Iterable[Expectation]) -> Iterator[Recorded]:
    """The runs of each case that are recorded. Raises CodecError for one of another format."""
    for case in cases:
        for path in files_of(case):
            how = path.name.removesuffix(_SUFFIX).rpartition(".")[2]
            whole = codec.decompress(path.read_bytes(), MAX_BYTES)
            program, *parts = whole.replace(bytes(HERE) + b"/", bytes(ROOT) + b"/").splitlines()
            yield Recorded(case, how, program, tuple(map(loaded, parts)))


def files_of(case: Expectation) -> list[Path]:
    """The files that hold the runs of a case."""
    return sorted(RECORDED.glob(f"{_name(case)}.*{_SUFFIX}"))


def loaded(part: bytes) -> Recording:
    """A recording as it is kept. Raises CodecError for one of another format."""
    found: Recording = codec.loads(Recording, part, MAX_BYTES, MAX_VALUES)
    return found


def store(case: Expectation, how: str, parts: Iterable[bytes]) -> Path:
    """Keep what was told in one run, without what names this machine."""
    names: Mapping[bytes, bytes] = {
        bytes(ROOT): bytes(HERE),
        bytes(Path(sys.prefix)): b"/venv",
        bytes(Path(sys.base_prefix)): b"/usr",
        b'"node":"' + socket.gethostname().encode() + b'"': b'"node":"node-a"',
    }
    found = b"\n".join((text_of(case.program), *parts))
    for name, neutral in sorted(names.items(), key=lambda pair: -len(pair[0])):
        found = found.replace(name, neutral)
    path = RECORDED / f"{_name(case)}.{how}{_SUFFIX}"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(zlib.compress(_TEMPORARY.sub(b"/tmp/run", found), 9))
    return path


def judged(told: Recording, thresholds: Thresholds | None = None) -> tuple[Verdict, ...]:
    """What is said of it now, or with another patience."""
    if told.thresholds is None:
        found = find_desync(told.snapshot)
        return (found,) if found else ()
    return diagnose(told.snapshot, thresholds or told.thresholds)


def result_of(case: Expectation, told: Iterable[Recording]) -> Result:
    """All that would be told in a run, as if it had come to its end as expected."""
    reports: list[Any] = []
    for one in told:
        found = judged(one)
        if found and found[0].state is not State.OK:
            reports.append(build_report(Evidence(_RUN, one.snapshot, found, "", 0.0)))
    verdicts = [verdict for report in reports for verdict in (report["verdict"], *report["also"])]
    code = case.values.get("exit")
    return Result(int(code) if code else None, "", "", reports, None, verdicts=verdicts)


def text_of(program: Path) -> bytes:
    """The fingerprint of a program, whose header may say otherwise on as many lines."""
    text = _CAUSES.sub(b"\n", program.read_bytes())
    return hashlib.sha256(_COMMENT.sub(b"#", text)).hexdigest().encode()


def _name(case: Expectation) -> str:
    return re.sub(r"[^\w-]+", "_", str(case))
