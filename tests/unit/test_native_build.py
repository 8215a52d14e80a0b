"""The native sources: free of warnings, and their core sound under sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from fake_cuda import build as build_fake_cuda

NATIVE = Path(__file__).resolve().parents[2] / "native"
CORE = (
    "beacon",
    "bell",
    "checkpoints",
    "cuda",
    "dump",
    "heartbeat",
    "mapping",
    "moments",
    "page",
    "reader",
    "tables",
    "uncaught",
    "writer",
)
WARNINGS = ["-std=c++17", "-Wall", "-Wextra", "-Werror"]
SANITIZED = ["-O1", "-g", "-pthread", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def compiler() -> str:
    """A C++ compiler. On a developer's machine there may be none, in CI there must."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if not compiler:
        if os.environ.get("CI"):
            pytest.fail("there is no C++ compiler, and CI needs one")
        pytest.skip("there is no C++ compiler")
    return compiler


def run(*words: str | Path) -> str:
    done = subprocess.run(  # noqa: S603 (the compiler, and what it made)
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=230,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_what_needs_python_compiles_without_a_warning() -> None:
    # The core is compiled with the same warnings below.
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").exists():
        pytest.skip("Python's headers are not installed")
    sources = sorted(path for path in NATIVE.glob("*.cpp") if path.stem not in CORE)
    assert sources
    run(
        compiler(),
        *WARNINGS,
        "-fsyntax-only",
        "-DPy_LIMITED_API=0x030B0000",
        f"-I{include}",
        *sources,
    )


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The core as one object, under sanitizers."""
    object_file = tmp_path_factory.mktemp("core") / "core.o"
    sources = [NATIVE / f"{part}.cpp" for part in CORE]
    run(compiler(), *WARNINGS, *SANITIZED, "-r", "-nostdlib", *sources, "-o", object_file)
    return object_file


def built(core: Path, directory: Path, test: str) -> Path:
    """A test of the core under sanitizers."""
    program = directory / test
    source = NATIVE / "tests" / f"{test}.cpp"
    run(compiler(), *WARNINGS, *SANITIZED, core, source, "-ldl", "-o", program)
    return program


def test_the_core_is_sound_under_sanitizers(core: Path, tmp_path: Path) -> None:
    assert run(built(core, tmp_path, "core_test"), tmp_path).strip() == "good"


def test_beacons_are_sound_under_sanitizers(core: Path, tmp_path: Path) -> None:
    library = build_fake_cuda(tmp_path, *SANITIZED)
    assert run(built(core, tmp_path, "beacon_test"), tmp_path, library).strip() == "good"


@pytest.fixture(scope="module")
def dump_test(core: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(core, tmp_path_factory.mktemp("dump"), "dump_test")


@pytest.mark.parametrize(
    ("version", "general"), [("2.8", []), ("2.15", ['-DFAKE_BACKEND="gloo"'])], ids=["2.8", "2.15"]
)
def test_answers_without_the_gil_are_sound_under_sanitizers(
    dump_test: Path, tmp_path: Path, version: str, general: list[str]
) -> None:
    fakes = [build_fake_cuda(tmp_path, *SANITIZED)]
    nccl: list[str] = []
    for name, function, more in (
        ("cuda", "dump_nccl_trace_json", nccl),
        ("cpu", "dump_fr_trace_json", general),
    ):
        fakes.append(tmp_path / f"libtorch_{name}.so")
        soname = f"-Wl,-soname,{fakes[-1].name}"
        options = [*WARNINGS, *SANITIZED, "-shared", "-fPIC", soname, *more]
        options.append(f"-DFAKE_RECORDER={function}")
        run(compiler(), *options, NATIVE / "tests" / "fake_torch.cpp", "-o", fakes[-1])
    found = run(dump_test, tmp_path, *fakes, version)
    assert found.strip() == "good"
