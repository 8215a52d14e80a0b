"""Control groups of version 1 or 2, for processes of tests."""

from __future__ import annotations

import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUP = Path("/sys/fs/cgroup")
MEMORY = "memory.limit_in_bytes", "memory.max"
CPU = "cpu.cfs_quota_us", "cpu.max"
"""Of the 100,000 us of a period."""


@contextmanager
def control_group(limit: tuple[str, str], value: int) -> Iterator[Path]:
    """A group with a limit, given as its names in version 1 and 2. It has to be empty at the end.

    Raises OSError where none can be made.
    """
    controller = limit[0].partition(".")[0]
    first = CGROUP / controller
    root, name = (first, limit[0]) if first.is_dir() else (CGROUP, limit[1])
    if root is CGROUP:
        (CGROUP / "cgroup.subtree_control").write_text(f"+{controller}")
    path = root / f"hangwatch-test-{uuid.uuid4().hex}"
    path.mkdir()
    try:
        (path / name).write_text(str(value))
        yield path
    finally:
        path.rmdir()


def _may_make_one() -> bool:
    with suppress(OSError), control_group(MEMORY, 1 << 30):
        return True
    return False


takes_root = pytest.mark.skipif(not _may_make_one(), reason="making cgroups takes root")
