"""The environment in which the command of a job is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hangwatch.agent.environment import (
    CARRIED,
    enable_flight_recorder,
    job_environment,
    looks_for_stragglers,
    packed,
    sitecustomize_directory,
)

OURS = sitecustomize_directory()
NEW, OLD = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"


def test_our_directory_has_a_sitecustomize_and_is_no_package() -> None:
    assert sorted(path.name for path in Path(OURS).glob("*.py")) == ["sitecustomize.py"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, [OURS]),
        ("", [OURS]),
        ("/a", [OURS, "/a"]),
        ("/a:/b:/a", [OURS, "/a", "/b", "/a"]),
        (":/a", [OURS, "", "/a"]),
        ("/a:", [OURS, "/a", ""]),
        (f"/a:{OURS}:/b", [OURS, "/a", "/b"]),
        (f"{OURS}/../sitecustomize/:/b", [OURS, "/b"]),
    ],
)
def test_pythonpath_is_extended_and_otherwise_kept(before: str | None, after: list[str]) -> None:
    environ = {} if before is None else {"PYTHONPATH": before}
    assert job_environment(environ, "/run")["PYTHONPATH"].split(os.pathsep) == after


def test_it_is_made_anew_from_an_environment_that_it_leaves_alone() -> None:
    environ = {"HOME": "/home", "PYTHONPATH": "/a"}
    job = job_environment(environ, Path("/run/x"))
    assert environ == {"HOME": "/home", "PYTHONPATH": "/a"}
    assert job["HOME"] == "/home"
    assert job["HANGWATCH_DIR"] == "/run/x"
    assert job["HANGWATCH_SUPERVISOR_PID"] == str(os.getpid())
    assert job_environment(job, "/run/x") == job


@pytest.mark.parametrize("version", ["2.8.0", "2.13.0+cpu", "3.0", "", "git1234", None])
def test_a_new_torch_is_told_by_the_new_name_alone(version: str | None) -> None:
    environ: dict[str, str] = {}
    enable_flight_recorder(environ, version)
    assert environ == {NEW: "2000"}


@pytest.mark.parametrize("version", ["2.4.0", "2.7.1+cu126"])
def test_an_old_torch_is_told_by_the_old_name_too(version: str) -> None:
    environ = {NEW: "2000"}
    enable_flight_recorder(environ, version)
    assert environ == {NEW: "2000", OLD: "2000"}


@pytest.mark.parametrize("version", ["2.4.0", "2.13.0", None])
def test_a_user_who_set_the_old_name_keeps_it_and_gets_no_other(version: str | None) -> None:
    environ = {OLD: "0"}
    enable_flight_recorder(environ, version)
    assert environ == {OLD: "0"}


def test_a_user_who_set_the_new_name_is_heeded_by_an_old_torch() -> None:
    environ = {NEW: "0"}
    enable_flight_recorder(environ, "2.5.1")
    assert environ == {NEW: "0", OLD: "0"}


@pytest.mark.parametrize(
    ("environ", "looks"),
    [
        ({}, True),
        ({"HANGWATCH_NO_STRAGGLERS": "1"}, False),
        ({CARRIED: packed({"config": {"stragglers": True}})}, True),
        ({CARRIED: packed({"config": {"stragglers": False}})}, False),
        # What the supervisor has read counts, of flags and variables.
        (
            {
                CARRIED: packed({"config": {"stragglers": True}}),
                "HANGWATCH_NO_STRAGGLERS": "1",
            },
            True,
        ),
        ({CARRIED: "no base64"}, True),
    ],
)
def test_ranks_note_moments_unless_the_user_wants_no_stragglers(
    environ: dict[str, str],
    looks: bool,  # noqa: FBT001 (a case)
) -> None:
    assert looks_for_stragglers(environ) is looks
