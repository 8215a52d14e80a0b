"""The kernel ends a rank for its use of memory, for real."""

from __future__ import annotations

import os
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import PROGRAMS, watch

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_BYTES = 1 << 30
CGROUP = Path("/sys/fs/cgroup")


@contextmanager
def control_group(limit_bytes: int) -> Iterator[Path]:
    """A control group of version 1 or 2 whose processes may use so much memory together.

    Raises OSError where none can be made.
    """
    first = CGROUP / "memory"
    root, limit = (first, "memory.limit_in_bytes") if first.is_dir() else (CGROUP, "memory.max")
    if root is CGROUP:
        (CGROUP / "cgroup.subtree_control").write_text("+memory")
    path = root / f"hangwatch-test-{uuid.uuid4().hex}"
    path.mkdir()
    try:
        (path / limit).write_text(str(limit_bytes))
        yield path
    finally:
        path.rmdir()


def may_make_one() -> bool:
    """Whether this machine lets us."""
    with suppress(OSError), control_group(LIMIT_BYTES):
        return True
    return False


@pytest.mark.skipif(os.geteuid() != 0 or not may_make_one(), reason="making cgroups takes root")
def test_a_kill_by_the_kernel_for_memory_is_told_from_another_one() -> None:
    with control_group(LIMIT_BYTES) as group:
        # It goes to its group before it loads torch, and must not have loaded it to meet others.
        result = watch(PROGRAMS / "oom_killed.py", arguments=[str(group)], env={"TOGETHER": ""})
    (report,) = result.reports
    verdict = report["verdict"]
    assert (verdict["kind"], verdict["reason"]) == ("died", "out_of_memory")
    assert verdict["culprits"] == [2]
    assert verdict["certainty"] == "proved"
    assert "ran out of memory" in verdict["headline"]
    assert result.exit_code == 1
