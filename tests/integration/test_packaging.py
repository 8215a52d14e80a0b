"""A built wheel carries all of it, and installs where the native module cannot be built."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITECUSTOMIZE = "hangwatch/sitecustomize/sitecustomize.py"


def build(directory: Path, **environ: str) -> Path:
    """The wheel of this tree."""
    # With what the build needs at hand, nothing has to be fetched for it.
    tools = ("scikit_build_core", "cmake", "ninja")
    ready = all(importlib.util.find_spec(tool) for tool in tools)
    isolation = ["--no-build-isolation"] if ready else []
    done = subprocess.run(  # noqa: S603 (pip, on this tree)
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-v",
            "--no-deps",
            *isolation,
            "-w",
            directory,
            ROOT,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=380,
        env={**os.environ, **environ},
    )
    assert done.returncode == 0, done.stdout
    (wheel,) = directory.glob("*.whl")
    return wheel


def test_one_wheel_serves_every_python_and_carries_everything(tmp_path: Path) -> None:
    wheel = build(tmp_path)
    assert "-cp311-abi3-" in wheel.name
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "hangwatch").rglob("*.py")}
    assert modules <= names
    templates = {f"{name}.html.j2" for name in ("page", "parts", "incident", "straggler")}
    page = {f"hangwatch/report/html/{name}" for name in {"page.css", "page.js"} | templates}
    assert page <= names
    assert {"hangwatch/_native.abi3.so", SITECUSTOMIZE, "hangwatch/py.typed"} <= names
    assert "hangwatch.pth" in names
    # A sitecustomize of its own, or a package of that name, would be everybody's.
    assert not [name for name in names if name.startswith("sitecustomize")]
    assert "hangwatch/sitecustomize/__init__.py" not in names


def test_without_a_compiler_it_installs_and_says_why_it_records_from_python(
    tmp_path: Path,
) -> None:
    wheel = build(tmp_path, CXX="/bin/false")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {SITECUSTOMIZE, "hangwatch.pth"} <= names
    assert not [name for name in names if name.endswith(".so")]
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    program = (
        "import sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from hangwatch.agent.record.recorder import choose\n"
        "print(choose({})._reason)\n"
    )
    # -S: without an editable installation that would answer in its place.
    told = subprocess.run(  # noqa: S603 (our own program)
        [sys.executable, "-S", "-c", program, tmp_path / "installed"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    assert "no C++ compiler was found when hangwatch was installed" in told.stdout
