"""Control groups of a process, of version 1 and 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangwatch.evidence.cgroups import directories, throttled_ns

if TYPE_CHECKING:
    from pathlib import Path


def belongs_to(tmp_path: Path, *lines: str) -> tuple[str, str]:
    """Let process 7 be in groups; the roots of /proc and of the groups."""
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text("".join(f"{line}\n" for line in lines))
    return str(tmp_path / "proc"), str(tmp_path / "cgroup")


def test_the_groups_of_a_process(tmp_path: Path) -> None:
    roots = belongs_to(tmp_path, "9:name=systemd:/x", "3:cpu,cpuacct:/job/one", "0::/slice/../job")
    found = [str(path.relative_to(tmp_path)) for path in directories(7, "cpu", *roots)]
    assert found == [
        *("cgroup/cpu/job/one", "cgroup/cpu/job", "cgroup/cpu"),
        *("cgroup/slice/job", "cgroup/slice", "cgroup"),
    ]
    assert list(directories(8, "cpu", *roots)) == []


@pytest.mark.parametrize(
    ("line", "counts", "ns"),
    [
        ("0::/job/one", {"job/one": "throttled_usec 5", "job": "throttled_usec 700"}, 700_000),
        ("0::/of/the/host", {".": "usage_usec 9\nthrottled_usec 3\nnr_bursts 0"}, 3_000),
        ("1:cpu:/job", {"cpu/job": "nr_throttled 1\nthrottled_time 42"}, 42),
        ("1:cpu:/job", {"cpu/job": "nr_throttled 1"}, 0),
        ("1:memory:/job", {"memory/job": "throttled_time 42"}, 0),
    ],
)
def test_how_long_a_limit_kept_it(
    tmp_path: Path, line: str, counts: dict[str, str], ns: int
) -> None:
    roots = belongs_to(tmp_path, line)
    for group, text in counts.items():
        (tmp_path / "cgroup" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / group / "cpu.stat").write_text(f"nr_periods 8\n{text}\n")
    assert throttled_ns(7, *roots) == ns
