"""Whose a frame is: one rule, which the agent has in Python and in C++, and the watchdog too."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hangwatch.agent.call_site import (
    Prefixes,
    is_internal,
    known_prefixes,
    program_code,
    started,
)
from hangwatch.model.frames import is_user_file, is_user_frame, marked
from hangwatch.model.snapshot import Frame

if TYPE_CHECKING:
    from recording import Recording

pytest_plugins = ["recorders"]

LIBRARY = "/venv/lib/python3.11/site-packages/"
PYTHON = "/usr/lib/python3.11/"
OURS = f"{LIBRARY}hangwatch/"
COMPANY = f"{LIBRARY}company/"
DEMO = "hangwatch/commands/demo/train.py"
CASES = [
    ("/home/me/train.py", "", True),
    ("train.py", "", True),
    ("/home/me/torch/model.py", "", True),
    ("<stdin>", "", True),
    ("<string>", "", True),
    ("<ipython-input-3-0a1b>", "", True),
    ("<frozen runpy>", "", False),
    ("<eval_with_key>.3", "", False),
    ("<attrs generated init company.Batch>", "", False),
    ("/var/torchinductor_me/ab/cab.py", "", False),
    (f"{PYTHON}threading.py", "", False),
    (f"{LIBRARY}torch/nn/modules/module.py", "", False),
    (f"{OURS}agent/guard.py", "", False),
    (f"{COMPANY}train.py", "", False),
    (f"{COMPANY}train.py", COMPANY, True),
    (f"{COMPANY}data/loader.py", COMPANY, True),
    (f"{LIBRARY}company_tools/io.py", COMPANY, False),
    (f"{LIBRARY}torch/nn/modules/module.py", COMPANY, False),
    ("/home/me/train.py", COMPANY, True),
    (f"{LIBRARY}solo.py", f"{LIBRARY}solo.py", True),
    (f"{LIBRARY}{DEMO}", f"{OURS}commands/demo/", True),
    (f"{OURS}agent/guard.py", f"{OURS}commands/demo/", False),
]


@pytest.mark.parametrize(("file", "program", "users"), CASES)
def test_all_three_know_whose_a_file_is(
    *, recording: Recording, file: str, program: str, users: bool
) -> None:
    assert is_user_file(file, program) is users
    (frame,) = marked([Frame(file, 1, "f")], program)
    assert is_user_frame(frame) is users
    prefixes = Prefixes((LIBRARY, PYTHON), [program] if program else [])
    assert is_internal(file, prefixes) is not users
    recording.set_prefixes(*prefixes.internal, __file__, program=prefixes.program)
    recording.define()
    code = "index = record(0, 'all_reduce', 'all_reduce', 1, False, '', (), -1, -1, 0, False)"
    scope: dict[str, Any] = {"record": recording.recorder.record_begin}
    exec(compile(code, file, "exec"), scope)  # noqa: S102 (a file that is not there)
    site = recording.last.site
    assert (site is not None and site.file == file) is users


def test_what_is_no_program_is_internal_here() -> None:
    prefixes = known_prefixes()
    assert prefixes.program == ()  # pytest runs programs of others
    assert all(prefix.endswith("/") for prefix in prefixes.internal)
    assert is_internal(os.__file__, prefixes)
    assert is_internal(pytest.__file__, prefixes)
    assert is_internal(sys.modules["hangwatch.agent.call_site"].__file__ or "", prefixes)
    assert not is_internal(__file__, prefixes)


def test_an_entry_of_sys_path_that_is_no_text_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    odd: Any = [None, b"/odd", 7]
    monkeypatch.setattr(sys, "path", [*sys.path, *odd])
    assert is_internal(pytest.__file__, known_prefixes())


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["python", "train.py", "-m", "x"], ("", "train.py")),
        (["python", "-u", "-X", "dev", "-m", "company.train", "--lr", "1"], ("company.train", "")),
        (["python", "-mcompany.train"], ("company.train", "")),
        (["python", "-um", "company.train"], ("company.train", "")),
        (["python", "-Wdefault", "-BuX", "dev", "train.py"], ("", "train.py")),
        (["python", "-c", "print(1)", "-m", "x"], ("", "")),
        (["python", "-", "-m", "x"], ("", "")),
        (["python"], ("", "")),
    ],
)
def test_what_a_command_line_runs(words: list[str], found: tuple[str, str]) -> None:
    assert started(words) == found


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A directory of installed packages."""
    found = tmp_path / "lib" / "site-packages"
    for name in (
        "company/train.py",
        "torch/distributed/run.py",
        DEMO,
    ):
        file = found / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (found / "solo.py").touch()
    return found


def test_the_package_of_a_module_that_is_run_is_the_program(library: Path) -> None:
    odd: Any = [b"/odd", None, library]
    path = [*odd, str(library.parent), str(library)]
    for words, code in (
        (["-m", "company.train"], f"{library}/company/"),
        (["-m", "company"], f"{library}/company/"),
        (["-m", "solo"], f"{library}/solo.py"),
        (["-m", "hangwatch.commands.demo.train"], f"{library}/hangwatch/commands/demo/"),
        (["-m", "torch.distributed.run", "train.py"], ""),
        (["-m", "nowhere.train"], ""),
    ):
        assert program_code(["python", *words], path) == code
    (library.parent / "company").mkdir()  # an entry before it has one of that name
    assert program_code(["python", "-m", "company.train"], path) == ""
    (library.parent / "company" / "__main__.py").touch()
    (library.parent / "company" / "train.py").touch()
    for words in (["-m", "company.train"], ["-mcompany"]):
        file = program_code(["python", *words], path)
        assert Path(file).parent == library.parent / "company"
        assert Path(file).is_file()


def test_so_is_that_of_a_file_and_of_a_console_script(library: Path, tmp_path: Path) -> None:
    path = [str(library)]
    file = library / DEMO
    assert program_code(["python", str(file)], path) == f"{file.parent}/"
    script = tmp_path / "bin" / "company-train"
    script.parent.mkdir()
    starts = "#!/usr/bin/python\nimport sys\nfrom company.train import main\n"
    script.write_text(f"{starts}if __name__ == '__main__':\n    sys.exit(main())\n")
    assert program_code(["python", str(script)], path) == f"{library}/company/"
    script.write_text(f"{starts}for step in range(10):\n    main()\n")  # a program of its own
    assert program_code(["python", str(script)], path) == ""
    script.write_bytes(b"\xff" * 9000)
    for other in (str(script), str(tmp_path / "bin" / "gone"), "/home/me/train"):
        assert program_code(["python", other], path) == ""
    assert program_code(["python", "/home/me/../you/train.py"], path) == "/home/you/train.py"
