"""A job's tools run in interpreters of any age: none of them notices us, and only a rank is told.

Each is the interpreter of that name, or of pyenv, where this machine has one.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from agent_runs import watched

from hangwatch.agent.environment import sitecustomize_directory

OURS = Path(sitecustomize_directory(), "sitecustomize.py")
NEXT = "import sys; sys.stdout.write('the next one\\n')"
C10D = "torch.distributed.distributed_c10d"


def interpreter(version: str) -> str:
    """An interpreter of that version, else the test is skipped."""
    home = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    installed = sorted(home.glob(f"versions/{version}.*/bin/python{version}"))
    found = [str(path) for path in installed] + [shutil.which(f"python{version}") or ""]
    for python in found:
        works = python and subprocess.run([python, "-c", ""], check=False).returncode == 0  # noqa: S603
        if works:
            return python
    pytest.skip(f"no Python {version} on this machine")


@pytest.fixture(params=["2.7", "3.6", "3.7", "3.8", "3.10"])
def old(request: pytest.FixtureRequest) -> str:
    python: str = interpreter(request.param)
    return python


def run(python: str, code: str, tmp_path: Path, **environ: str) -> tuple[str, str, list[str]]:
    """Standard output and error of a program below hangwatch, and the notes of agents."""
    directory = tmp_path / "run"
    directory.mkdir(exist_ok=True)
    theirs = tmp_path / "theirs"
    package = theirs / "torch" / "distributed"
    package.mkdir(parents=True)
    for file in (theirs / "torch", package):
        (file / "__init__.py").touch()
    (package / "distributed_c10d.py").touch()
    (theirs / "sitecustomize.py").write_text(NEXT)
    done = subprocess.run(  # noqa: S603 (an interpreter of this machine)
        [python, "-B", "-c", code],
        env=watched(directory, {"PYTHONPATH": str(theirs), "PYTHONDONTWRITEBYTECODE": "1"})
        | environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr, [path.read_text() for path in directory.glob("*.err")]


def test_a_tool_of_a_rank_in_an_old_interpreter_notices_nothing(old: str, tmp_path: Path) -> None:
    code = "import sys; sys.stdout.write(sys.modules['sitecustomize'].__file__)"
    out, err, notes = run(old, code, tmp_path, RANK="0", WORLD_SIZE="1")
    theirs = tmp_path / "theirs" / "sitecustomize.py"
    assert out.removesuffix("c") == f"the next one\n{theirs}"
    assert (err, notes) == ("", [])


def test_a_rank_in_an_old_interpreter_is_told_and_runs(old: str, tmp_path: Path) -> None:
    code = f"import {C10D}; import {C10D}"
    out, err, notes = run(old, code, tmp_path, RANK="0", WORLD_SIZE="1")
    assert (out, err) == ("the next one\n", "")
    (note,) = notes
    assert "is not recorded: this is Python " in note
    assert note.endswith("and hangwatch needs 3.11 or later in the job\n")


def test_who_imports_torch_in_an_old_interpreter_and_is_no_rank_is_not_told(
    old: str, tmp_path: Path
) -> None:
    out, err, notes = run(old, f"import {C10D}", tmp_path)
    assert (out, err, notes) == ("the next one\n", "", [])


def test_no_syntax_is_used_that_python_2_lacks() -> None:
    """Also where there is none to try: what we would write without thinking."""
    tree = ast.parse(OURS.read_text(), feature_version=(3, 4))
    for node in ast.walk(tree):
        new = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Nonlocal, ast.AsyncFunctionDef)
        assert not isinstance(node, new), ast.dump(node)
        if isinstance(node, ast.arguments):
            assert not [*node.kwonlyargs, *node.posonlyargs]
            assert not any(argument.annotation for argument in node.args)
        if isinstance(node, ast.FunctionDef):
            assert node.returns is None
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            assert not any(isinstance(element, ast.Starred) for element in node.elts)
        if isinstance(node, ast.Raise):
            assert node.cause is None
