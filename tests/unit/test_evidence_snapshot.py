"""From a page and what else is known to a snapshot, and the sources that it names."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from made_pages import SITE, WORLD, event, page

from hangwatch.evidence import sources
from hangwatch.evidence.processes import LaunchedRank
from hangwatch.evidence.snapshot import launched_snapshot, rank_snapshot, waits_itself, with_process
from hangwatch.model.calls import GroupKey, Site
from hangwatch.model.kinds import OpState, Phase
from hangwatch.model.page import ExceptionRecord, PageMark, PageNewGroup
from hangwatch.model.snapshot import (
    Child,
    Frame,
    Mark,
    NewGroup,
    ProcessState,
    RankSnapshot,
    ThreadStack,
)

if TYPE_CHECKING:
    from typing import Any

S = 1_000_000_000
ALIVE = ProcessState(alive=True)


def snapshot(now_ns: int = 0, **changes: Any) -> RankSnapshot:
    return rank_snapshot(page(0, **changes), ALIVE, "node0", now_ns or time.monotonic_ns())


def test_times_become_ages() -> None:
    now_ns = time.monotonic_ns()
    found = snapshot(
        now_ns + 4 * S,
        phase_ns=now_ns,
        gil_ns=now_ns + S,
        heartbeat_ns=now_ns + 2 * S,
        pending_since_ns=now_ns + 3 * S,
        in_call="new_group",
        in_call_ns=now_ns,
        exception=ExceptionRecord("KeyError", "x", SITE, now_ns),
    )
    assert [found.phase_age_s, found.gil_age_s] == [4, 3]
    assert [found.heartbeat_age_s, found.pending_age_s] == [2, 1]
    assert [found.in_call_age_s, found.exception_age_s] == [4, 4]


def test_an_exception_of_c_plus_plus_is_an_abort_and_no_exception_of_the_program() -> None:
    now_ns = time.monotonic_ns()
    error = ExceptionRecord("gloo::EnforceNotMet", "36 vs 4", None, now_ns, in_cpp=True)
    found = snapshot(now_ns + 4 * S, exception=error)
    assert (found.exception, found.exception_age_s) == (None, None)
    assert (found.abort, found.abort_age_s) == (error, 4)


def test_calls_of_new_group_have_ages_and_keys() -> None:
    now_ns = time.monotonic_ns()
    made = PageNewGroup(0, now_ns, 1, (0, 2), SITE)
    found = snapshot(now_ns + 4 * S, new_groups=(made,))
    assert found.new_groups == (NewGroup(0, 1, GroupKey((0, 2)), SITE, 4.0),)


def test_marks_have_ages() -> None:
    now_ns = time.monotonic_ns()
    found = snapshot(now_ns + 4 * S, marks=(PageMark("no_sync", "", 3, now_ns, SITE),))
    assert found.marks == (Mark("no_sync", "", 3, 4.0, SITE),)


def test_what_never_was_has_no_age() -> None:
    found = snapshot(gil_ns=0)
    assert (found.gil_age_s, found.heartbeat_age_s, found.pending_age_s) == (None, None, None)
    assert (found.in_call_age_s, found.exception_age_s) == (0, None)


def test_groups_and_calls_are_those_of_the_page() -> None:
    found = snapshot(events=(event(3),))
    (progress,) = found.groups
    assert (progress.key, progress.enqueued, progress.completed) == (WORLD, 3, 3)
    (op,) = found.ops
    assert (op.op, op.seq, op.state, op.site) == ("all_reduce", 3, OpState.BLOCKED, SITE)


def test_what_the_recorder_could_not_do_is_missing_evidence() -> None:
    found = snapshot(
        disarmed="too many errors", recorder_reason="no compiler", torch_lacks="gloo has no names"
    )
    assert "with its torch and libraries, gloo has no names" in found.missing_evidence
    assert any("too many errors" in text for text in found.missing_evidence)
    assert any("no compiler" in text for text in found.missing_evidence)


def test_a_rank_without_a_page_is_one_that_never_came_to_torch() -> None:
    found = launched_snapshot(LaunchedRank(5, 1, 3, 3, 4), ALIVE, "node0")
    found = with_process(found, (), (), None, ["no stack"])
    assert (found.rank, found.pid, found.phase) == (3, 5, Phase.BORN)
    assert len(found.missing_evidence) == 2


def test_a_rank_that_waits_itself_is_no_culprit_with_data_workers() -> None:
    assert waits_itself(page(0, events=(event(),)))
    assert waits_itself(page(0, in_call="init_process_group"))
    assert not waits_itself(page(0, events=(event(3, OpState.DONE),)))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import torch\n")
    return path


def named(*files: object) -> dict[str, int]:
    """The files of a rank that is in each of these."""
    frames = tuple(Frame(str(file), 1, "f") for file in files)
    thread = ThreadStack("T", 1, active=True, owns_gil=True, frames=frames)
    return sources.files_of([replace(snapshot(), threads=(thread,))])


def test_files_are_named_by_calls_exceptions_and_stacks() -> None:
    worker = ThreadStack("T", 1, active=True, owns_gil=True, frames=(Frame("/d.py", 1, "f"),))
    found = snapshot(
        events=(event(site=Site("/a.py", 1, "f")),),
        in_call_site=Site("/b.py", 1, "f"),
        exception=ExceptionRecord("E", "", Site("/c.py", 1, "f")),
    )
    found = with_process(found, None, (Child(9, "python", ALIVE, (worker,)),), None, ())
    assert set(sources.files_of([found])) == {"/a.py", "/b.py", "/c.py", "/d.py"}


def test_only_the_users_own_files_are_read(script: Path) -> None:
    found = named(script, "/x/site-packages/torch/a.py", "<frozen runpy>", "/usr/lib/libc.so.6")
    assert list(found) == [str(script)]
    assert sources.read(found, time.time() + 10) == {str(script): "import torch\n"}


def test_a_file_that_was_changed_since_is_not_quoted(script: Path) -> None:
    assert sources.read(named(script), script.stat().st_mtime - 1) == {}


def test_a_relative_name_is_looked_up_where_the_rank_works(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(script.parent)
    monkeypatch.setattr(os, "getcwd", lambda: "/")  # it is /proc that tells
    assert sources.read({"train.py": os.getpid()}, time.time() + 10) == {
        "train.py": "import torch\n"
    }


def test_what_is_no_readable_file_of_a_fair_size_is_left_out(tmp_path: Path, script: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "large.py").write_bytes(b"#" * (sources.MAX_FILE_BYTES + 1))
    (tmp_path / "directory.py").mkdir()
    names = ["pipe.py", "large.py", "directory.py", "none.py"]
    files = {str(tmp_path / name): 1 for name in names} | {str(script): 1}
    assert list(sources.read(files, time.time() + 10)) == [str(script)]


def test_sources_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_TOTAL_BYTES", 250)
    files = {}
    for number in range(5):
        path = tmp_path / f"{number}.py"
        path.write_text("#" * 100)
        files[str(path)] = 1
    assert len(sources.read(files, time.time() + 10)) == 2


def test_odd_bytes_in_a_source_are_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "latin.py"
    path.write_bytes(b"# \xe9\n")
    assert sources.read({str(path): 1}, time.time() + 10) == {str(path): "# \ufffd\n"}


def test_what_a_file_imports_is_read_with_it(tmp_path: Path) -> None:
    texts = {
        "train.py": "import json, torch\nimport lib.engine\nfrom helpers import run\nimport gone",
        "helpers.py": "from train import main",
        "lib/__init__.py": "",
        "lib/engine.py": "from . import parts\nfrom .parts.loop import Loop\nimport lib.data",
        "lib/data.py": "import helpers",
        "lib/parts/__init__.py": "from ..losses import *",
        "lib/parts/loop.py": "not Python",
        "lib/losses.py": "",
        "lib/unused.py": "",
        "site-packages/gone.py": "",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = sources.read({str(tmp_path / "train.py"): 1}, time.time() + 10)
    left = {"lib/unused.py", "site-packages/gone.py"}
    assert found == {str(tmp_path / name): texts[name] for name in texts.keys() - left}
    # From within a package its program is not known: its modules are.
    inside = sources.read({str(tmp_path / "lib/data.py"): 1}, time.time() + 10)
    assert {Path(name).name for name in inside} == {"data.py", "helpers.py", "train.py"} | {
        Path(name).name for name in texts if name.startswith("lib/") and name not in left
    }


def test_the_program_is_read_though_nothing_names_it(script: Path) -> None:
    seen = snapshot()
    assert list(sources.files_of([replace(seen, program=str(script))])) == [str(script)]
    assert sources.files_of([replace(seen, program=f"{script.parent}/")]) == {}


def test_a_program_that_was_started_by_a_relative_name_is_read_once(script: Path) -> None:
    thread = ThreadStack("T", 1, active=True, owns_gil=True, frames=(Frame("./train.py", 1, "f"),))
    seen = with_process(snapshot(), (thread,), (), None, ())
    assert list(sources.files_of([replace(seen, program=str(script))])) == ["./train.py"]


def test_an_import_from_above_all_directories_is_none(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"if old:\n    from {'.' * 99} import x\n    from .. import {'y' * 999}\n")
    assert list(sources.read({str(path): 1}, time.time() + 10)) == [str(path)]


def test_who_does_not_wait_for_all_files_has_those_that_were_read(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(*_arguments: object) -> None:
        raise EOFError

    monkeypatch.setattr(sources, "_imported", hangs)
    texts: dict[str, str] = {}
    with pytest.raises(EOFError):
        sources.read(named(script), time.time() + 10, into=texts)
    assert texts == {str(script): "import torch\n"}
