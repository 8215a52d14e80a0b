"""Another user who has made our directories first costs no watch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

OTHER = "65534"
"""nobody"""
SETUP = """
set -e
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mkdir -m 1777 /dev/shm/tmp
mkdir -m 0700 /dev/shm/runtime
export TMPDIR=/dev/shm/tmp
plant() { setpriv --reuid %s --clear-groups sh -ec "$1"; }
%s
exec "$0" -m hangwatch sh -c 'echo "$HANGWATCH_DIR"'
"""
TAKEN = {
    "directory": 'for d in $BASES; do plant "mkdir -m 0777 $d/hangwatch-0"; done',
    "link": 'for d in $BASES; do plant "ln -s /dev/shm/tmp $d/hangwatch-0"; done',
    "file": 'for d in $BASES; do plant "touch $d/hangwatch-0"; done',
    "open to all": (
        "for d in $BASES; do mkdir -m 0777 $d/hangwatch-0; chmod 0777 $d/hangwatch-0;"
        ' plant "mkdir -m 0777 $d/hangwatch-0/job-1"; done'
    ),
}
BOTH = "BASES='/dev/shm /dev/shm/tmp'; "


def run(where: Path, how: str, again: str = "") -> subprocess.CompletedProcess[str]:
    """Hangwatch where things were planted; what it says, and the directory of the run."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("planting files as another user takes root")
    unshare = ("unshare", "--mount", "--propagation", "private")
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:  # noqa: S603
        pytest.skip("this machine does not allow namespaces")
    script = SETUP % (OTHER, how + again)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HANGWATCH")}
    return subprocess.run(  # noqa: S603 (the test's own command)
        [*unshare, "sh", "-c", script, sys.executable],
        cwd=where,
        env={key: value for key, value in clean.items() if key != "XDG_RUNTIME_DIR"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("what", TAKEN)
def test_pages_lie_below_the_users_own_runtime_directory_then(tmp_path: Path, what: str) -> None:
    plant = f"export XDG_RUNTIME_DIR=/dev/shm/runtime; {BOTH}{TAKEN[what]}\n"
    done = run(tmp_path, plant)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout).parts[3:5] == ("runtime", "hangwatch-0"), done.stderr
    assert "pages are kept in /dev/shm/runtime" in done.stderr
    (kept,) = (tmp_path / "hangwatch-reports").glob("2*/run.json")
    assert any("pages are kept in" in text for text in json.loads(kept.read_text())["lost"])


@pytest.mark.parametrize("what", TAKEN)
def test_or_in_a_fresh_private_one_which_is_found_again(tmp_path: Path, what: str) -> None:
    again = (
        '"$0" -m hangwatch sh -c \'echo "$HANGWATCH_DIR"\'\nstat -c %a:%u /dev/shm/hangwatch-0-*\n'
    )
    done = run(tmp_path, f"{BOTH}{TAKEN[what]}\n", again)
    assert done.returncode == 0, done.stderr
    first, mode, second = done.stdout.splitlines()
    assert Path(first).parent == Path(second).parent
    assert Path(first).parent.name.startswith("hangwatch-0-")
    assert mode == "700:0"
    assert "unwatched" not in done.stderr


def test_private_directories_that_others_have_made_are_passed_over(tmp_path: Path) -> None:
    plant = f'{BOTH}{TAKEN["directory"]}\nplant "mkdir -m 0777 /dev/shm/hangwatch-0-aaaa"\n'
    plant += "mkdir -m 0777 /dev/shm/hangwatch-0-bbbb; chmod 0777 /dev/shm/hangwatch-0-bbbb\n"
    done = run(tmp_path, plant)
    (path,) = done.stdout.splitlines()
    assert Path(path).parent.name[-4:] not in {"aaaa", "bbbb"}, done.stderr
