"""Options, variables and the words of the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hangwatch import __version__, _native, cli
from hangwatch.console import fold_command, printable
from hangwatch.errors import UsageError
from hangwatch.settings.config import OPTIONS, Config, OnHang, Stacks, parse_options, read_config


def parsed(*argv: str) -> tuple[Config, list[str]]:
    """Settings and the rest of a command line, without variables."""
    found = parse_options(argv)
    return read_config(found.values, {}), found.words


def test_options_end_at_the_first_word_that_is_none() -> None:
    config, words = parsed("--hang-after", "9", "torchrun", "--hang-after", "3", "-v", "train.py")
    assert config == Config(hang_after_s=9.0)
    assert words == ["torchrun", "--hang-after", "3", "-v", "train.py"]


def test_two_dashes_end_the_options() -> None:
    assert parsed("-v", "--", "--odd-name", "x") == (Config(verbose=True), ["--odd-name", "x"])


def test_every_setting_has_an_option_and_a_variable() -> None:
    values = {
        "--report-dir": "out",
        "--run-id": "r1",
        "--suspect-after": "3",
        "--hang-after": "8.5",
        "--on-hang": "abort",
        "--hook": "notify-me",
        "--interval": "0.25",
        "--stacks": "native",
        "--metrics-addr": "[::1]:9854",
        "--straggler-window": "20",
    }
    first = Config("out", "r1", 3.0, 8.5, OnHang.ABORT, "notify-me", 0.25, Stacks.NATIVE)
    expected = replace(
        first,
        verbose=True,
        metrics_addr="[::1]:9854",
        gpu=False,
        stragglers=False,
        straggler_window_s=20.0,
    )
    flags = [word for pair in values.items() for word in pair]
    assert parsed(*flags, "--no-gpu", "--no-stragglers", "--verbose", "true") == (
        expected,
        ["true"],
    )
    joined = [f"{flag}={value}" for flag, value in values.items()]
    assert parsed(*joined, "--no-gpu", "--no-stragglers", "-v")[0] == expected
    variables = {option.variable: values.get(option.flag, "1") for option in OPTIONS}
    assert read_config({}, variables) == expected


def test_a_flag_wins_over_its_variable() -> None:
    values = parse_options(["--hang-after", "auto"]).values
    assert read_config(values, {"HANGWATCH_HANG_AFTER": "9"}).hang_after_s is None


def test_an_empty_variable_counts_as_not_set() -> None:
    assert read_config({}, {"HANGWATCH_HOOK": "", "HANGWATCH_INTERVAL": ""}) == Config()


@pytest.mark.parametrize(
    ("variable", "value"),
    [("HANGWATCH_INTERVAL", "auto"), ("HANGWATCH_VERBOSE", "yes"), ("HANGWATCH_HANG_AFTER", "x")],
)
def test_a_variable_that_makes_no_sense_is_named(variable: str, value: str) -> None:
    with pytest.raises(UsageError, match=variable):
        read_config({}, {variable: value})


def test_help_names_every_option_and_every_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"], {}) == 0
    shown = capsys.readouterr().out
    for word in (*(option.flag for option in OPTIONS), *cli.OWN_COMMANDS, "run --"):
        assert word in shown
    assert all(len(line) <= 100 for line in shown.splitlines())


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"], {}) == 0
    assert capsys.readouterr().out == f"hangwatch {__version__}\n"


def test_the_doctor_looks_at_what_hangwatch_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"], os.environ) == 0
    shown = capsys.readouterr().out
    for name in ("hangwatch", "python", "torch", "injection", "recorder", "beacons", "pages"):
        assert f" {name} " in shown


@pytest.mark.parametrize(
    ("found", "line"),
    [
        ((2, ""), "ok    beacons    2 GPUs can show the progress of streams"),
        ((1, ""), "ok    beacons    1 GPU can show the progress of streams"),
        (
            (0, "libcuda.so.1 has no cuInit"),
            "warn  beacons    none, the progress of GPUs is not known",
        ),
        ((0, "libcuda.so.1: cannot open shared object file: No such"), "ok    beacons    none: no"),
    ],
)
def test_the_doctor_says_whether_gpus_can_tell_how_far_they_are(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    found: tuple[int, str],
    line: str,
) -> None:
    monkeypatch.setattr(_native, "examine_beacons", lambda: found)
    assert cli.main(["doctor"], os.environ) == 0
    assert f"\n{line}" in capsys.readouterr().out


def test_the_doctor_says_where_pages_would_go_instead(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    assert cli.main(["doctor"], {"HANGWATCH_DIR": str(missing)}) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line[6:].startswith("pages "))
    assert line.startswith("warn")
    assert f"{missing}: No such file or directory" in line


def test_path_is_the_directory_that_python_finds_the_agent_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["path"], {}) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert (Path(line) / "sitecustomize.py").is_file()


@pytest.mark.parametrize("word", ["doctor", "demo", "path"])
def test_words_of_ours_that_take_no_argument_refuse_one(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([word, "more"], {}) == cli.EXIT_USAGE
    said = f"hangwatch: unrecognized arguments: more; see hangwatch {word} --help\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("word", cli.OWN_COMMANDS)
def test_each_word_of_ours_explains_itself(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([word, "--help"], {})
    assert ended.value.code == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"usage: hangwatch {word} ")
    assert shown.err == ""
    assert all(len(line) <= 100 for line in shown.out.splitlines())


def test_a_command_is_started_without_what_only_our_own_words_need() -> None:
    """Each of these costs more than the rest of the start."""
    late = {"argparse", "rich", "jinja2", "orjson", "asyncio", "prometheus_client"}
    code = "import sys, hangwatch.cli, hangwatch.launch.supervisor; print(*sys.modules)"
    done = subprocess.run(  # noqa: S603 (our own Python)
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert late.isdisjoint(done.stdout.split())


def test_a_terminal_that_knows_ascii_alone_gets_the_rest_escaped(tmp_path: Path) -> None:
    (tmp_path / "gedächtnis").mkdir()
    words = ["report", "--list", str(tmp_path)]
    (tmp_path / "gedächtnis" / "run.json").write_text("{}")
    done = subprocess.run(  # noqa: S603 (our own Python)
        [sys.executable, "-m", "hangwatch", *words],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("ged\\xe4chtnis  ")


def test_a_long_command_is_shown_by_its_beginning() -> None:
    shown = fold_command(["torchrun", "train.py", *(f"--option-{i}" for i in range(99))])
    assert shown.startswith("torchrun train.py --option-0")
    assert shown.endswith("...")
    assert len(shown) == 60


def test_control_characters_are_escaped() -> None:
    assert printable("a\x1b[31mb\nc\td\udcff é") == r"a\x1b[31mb\nc\td\xff é"


def test_modules_of_the_program_beside_it_are_not_taken_for_pythons_own(tmp_path: Path) -> None:
    for name in ("selectors", "queue", "random", "platform", "statistics", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the program was imported')\n")
    line = [sys.executable, "-m", "hangwatch", "--version"]
    ran = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)  # noqa: S603 (our own)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("hangwatch ")
