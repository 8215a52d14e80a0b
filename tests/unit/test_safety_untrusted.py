"""What others could have made is opened in one way, which never waits and has an end."""

from __future__ import annotations

import ast
import fcntl
import os
import re
import socket
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hangwatch
from hangwatch.safety import untrusted
from hangwatch.safety.untrusted import Owner, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST = 1000
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
NOBODY = 65534


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link(path: Path) -> None:
    (path.parent / "target").write_text("{}")
    path.symlink_to("target")


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


KINDS: dict[str, Callable[[Path], None]] = {
    "it is a FIFO": fifo,
    "it is a symbolic link": zero,
    "it is a symbolic link, not": link,
    "it is a symbolic link, ": dangling,
    "it is a socket": unix_socket,
    "it is a directory": Path.mkdir,
    "more than 1000": sparse,
}


@pytest.mark.parametrize("owner", Owner)
@pytest.mark.parametrize("why", KINDS)
def test_only_a_file_of_a_bounded_size_is_read(tmp_path: Path, why: str, owner: Owner) -> None:
    KINDS[why](tmp_path / "run.json")
    with pytest.raises(RefusedError, match=why):
        untrusted.read(tmp_path / "run.json", MOST, owner)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device")
def test_a_device_is_not_even_opened(tmp_path: Path) -> None:
    os.mknod(tmp_path / "page", 0o600 | 0o020000, os.makedev(10, 130))  # /dev/watchdog
    with pytest.raises(RefusedError, match="it is a device"):
        untrusted.read(tmp_path / "page", MOST)
    with pytest.raises(RefusedError, match="it is a device"):
        untrusted.open_ours(tmp_path / "page")


def test_what_the_operator_has_typed_may_be_a_link(tmp_path: Path) -> None:
    link(tmp_path / "report.json")
    assert untrusted.read(tmp_path / "report.json", MOST, follow=True) == b"{}"
    zero(tmp_path / "zero")
    with pytest.raises(RefusedError, match="it is a device"):
        untrusted.read(tmp_path / "zero", MOST, follow=True)


def test_a_file_that_grows_while_it_is_read_has_an_end(tmp_path: Path) -> None:
    file = tmp_path / "page"
    file.write_bytes(b"")
    done = threading.Event()

    def grow() -> None:
        with file.open("ab", buffering=0) as growing:
            while not done.is_set() and growing.tell() < 64 << 20:
                growing.write(bytes(1 << 16))

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        for _ in range(50):
            with suppress(RefusedError):
                assert len(untrusted.read(file, 1 << 20)) <= 1 << 20
    finally:
        done.set()
        writer.join()
    file.write_bytes(b"x" * (MOST + 1))
    with pytest.raises(RefusedError, match="more than 1000"):
        untrusted.read(file, MOST)


def test_the_directory_of_a_file_whose_owner_counts_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "planted").symlink_to("run")
    assert untrusted.read(tmp_path / "run" / "run.json", MOST, Owner.DIRECTORY) == b"{}"
    with pytest.raises(OSError, match="Not a directory"):
        untrusted.read(tmp_path / "planted" / "run.json", MOST, Owner.DIRECTORY)
    with pytest.raises(OSError, match="Not a directory"):
        untrusted.names(tmp_path / "planted")


@ROOT
def test_a_file_that_is_not_its_directorys_owners_is_refused(tmp_path: Path) -> None:
    """Such as a hard link to a file of root's."""
    (tmp_path / "run.json").write_text("{}")
    os.chown(tmp_path, NOBODY, NOBODY)
    with pytest.raises(RefusedError, match="it belongs to user 0"):
        untrusted.read(tmp_path / "run.json", MOST, Owner.DIRECTORY)
    os.chown(tmp_path / "run.json", NOBODY, NOBODY)
    assert untrusted.read(tmp_path / "run.json", MOST, Owner.DIRECTORY) == b"{}"


@ROOT
def test_another_users_run_is_refused_to_all_but_root(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    for path in (tmp_path, tmp_path / "run.json"):
        os.chown(path, 12345, 12345)
        path.chmod(0o755)
    for parent in list(tmp_path.parents)[:-2]:
        parent.chmod(0o755)
    refused = as_user(
        NOBODY,
        lambda: untrusted.read(tmp_path / "run.json", MOST, Owner.DIRECTORY),
        lambda: untrusted.names(tmp_path, Owner.DIRECTORY),
        lambda: untrusted.open_ours(tmp_path / "run.json"),
        lambda: untrusted.read(tmp_path / "run.json", MOST),
    )
    assert refused == [*["it belongs to user 12345"] * 3, ""]


def as_user(user: int, *looks: Callable[[], object]) -> list[str]:
    """Why each was refused, done by another user; empty where it was not."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(user, user, user)
            for look in looks:
                why = ""
                try:
                    look()
                except OSError as error:
                    why = str(error.strerror)
                os.write(writing, f"{why}\n".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        lines = told.read().split("\n")[:-1]
    os.waitpid(child, 0)
    return lines


HOLDER = """
import fcntl, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
with open(sys.argv[1], "r+b") as file:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lease_of_somebody_else_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "page").write_bytes(b"1")
    with subprocess.Popen(  # noqa: S603 (our own Python)
        [sys.executable, "-c", HOLDER, str(tmp_path / "page")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RefusedError, match="a lease"):
            untrusted.read(tmp_path / "page", MOST)


def test_a_lock_that_is_held_for_ever_is_not_waited_for(tmp_path: Path) -> None:
    held = untrusted.open_ours(tmp_path / "lock", create=True)
    assert not untrusted.is_locked(tmp_path / "lock")
    fcntl.flock(held, fcntl.LOCK_EX)
    assert untrusted.is_locked(tmp_path / "lock")
    os.close(held)


@pytest.mark.parametrize("plant", [fifo, zero, link, unix_socket, Path.mkdir])
def test_no_lock_is_taken_on_what_is_no_file(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    plant(tmp_path / "lock")
    for create in (True, False):
        with pytest.raises(OSError, match="it is a "):
            untrusted.open_ours(tmp_path / "lock", create=create)


@pytest.mark.parametrize("plant", [fifo, zero, link, unix_socket])
def test_what_is_written_takes_the_place_of_what_was_planted(
    tmp_path: Path, plant: Callable[[Path], None]
) -> None:
    plant(tmp_path / "run.json")
    untrusted.replace(tmp_path / "run.json", b"ours")
    assert untrusted.read(tmp_path / "run.json", MOST) == b"ours"
    assert (tmp_path / "run.json").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "target").exists() or (tmp_path / "target").read_text() == "{}"


@ROOT
def test_a_directory_of_somebody_else_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", NOBODY, NOBODY)
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to("mine")
    with (
        pytest.raises(RefusedError, match="it belongs to user 65534"),
        untrusted.held_directory(tmp_path / "theirs"),
    ):
        pass
    with (
        pytest.raises(OSError, match="Not a directory"),
        untrusted.held_directory(tmp_path / "link"),
    ):
        pass
    with untrusted.held_directory(tmp_path / "mine") as held:
        (tmp_path / "mine").rename(tmp_path / "moved")
        (tmp_path / "mine").symlink_to("theirs")
        (held / "report").write_text("")
    assert [path.name for path in (tmp_path / "moved").iterdir()] == ["report"]
    assert list((tmp_path / "theirs").iterdir()) == []


def test_values_of_a_text_are_counted_before_they_are_made() -> None:
    bomb = b"[" + b"[]," * 4_000_000 + b"0]"
    with pytest.raises(ValueError, match="more than"):
        untrusted.parse_json(bomb)
    with pytest.raises(ValueError, match="nested too deeply"):
        untrusted.parse_json(b"[" * 200_000)


def test_no_more_names_are_listed_than_asked_for(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).touch()
    assert len(untrusted.names(tmp_path)) == 20
    assert len(untrusted.names(tmp_path, most=7)) == 7


# --- No other way is left --------------------------------------------------------

PACKAGE = Path(hangwatch.__file__).parent
OPENING = frozenset(
    {"open", "fopen", "read_text", "read_bytes", "write_text", "write_bytes", "mmap", "touch"}
    | {"listdir", "scandir", "walk", "iterdir", "glob", "rglob", "openat", "copyfile", "mkfifo"}
    | {"TemporaryFile", "NamedTemporaryFile", "mkstemp", "mkdtemp", "TemporaryDirectory"}
)
"""Calls that open or list what has a path."""
PROC = "files of /proc, /sys and /dev, which nobody else makes"
OURS = "in a directory 0700 that this process or its supervisor has made"
NEW = "made anew (O_EXCL)"
TOLD = "where the operator has told us to write, links and all"
NULL = "/dev/null"
ALLOWED: dict[tuple[str, str], str] = {
    ("agent/inject/post_import.py", "_append"): OURS,
    ("agent/inject/process.py", "_leave_out"): OURS,
    ("agent/inject/hooks.py", "allow_supervisor"): PROC,
    ("agent/record/python_page.py", "__init__"): NEW,
    ("agent/record/python_page.py", "_mapped"): "a descriptor of __init__()",
    ("agent/inject/rank.py", "_stat_fields"): PROC,
    ("agent/inject/rank.py", "descends_from_rank"): OURS,
    (
        "commands/analyze.py",
        "_within",
    ): "below what the operator has named, not followed",
    ("launch/standalone.py", "forget_ended_job"): OURS,
    ("cli.py", "main"): NULL,
    ("commands/doctor/outcome.py", "leave"): OURS,
    ("commands/doctor/outcome.py", "read"): OURS,
    ("commands/doctor/machine.py", "gpus_seen"): PROC,
    ("commands/doctor/trial.py", "run"): OURS,
    ("commands/doctor/trial.py", "_watched"): OURS,
    ("commands/doctor/trial.py", "_wait"): OURS,
    ("commands/inspection/processes.py", "has_torch"): PROC,
    ("launch/command.py", "keep_streams_closed"): NULL,
    ("metrics/server.py", "_sweep"): "names in a sticky directory; only files of ours are opened",
    ("run/test_hooks.py", "reach"): "of our own tests",
    ("run/test_hooks.py", "keep"): "of our own tests",
    ("evidence/environment.py", "nccl_version"): "names beside a library that the job has loaded",
    ("evidence/environment.py", "_mapped"): PROC,
    ("evidence/environment.py", "_adapter"): PROC,
    ("evidence/sockets.py", "sockets"): PROC,
    ("evidence/sockets.py", "open_files"): PROC,
    ("preflight/machine.py", "_read"): PROC,
    ("evidence/sockets.py", "listener"): PROC,
    ("launch/signals.py", "_in_foreground"): PROC,
    ("report/directories.py", "store"): NEW,
    ("report/directories.py", "create_file"): NEW,
    ("report/directories.py", "_swapped"): NEW,
    ("report/html/page.py", "rendered"): "files of this package",
    ("run/rundir.py", "empty"): OURS,
    ("run/rundir.py", "_parent"): "names in a directory that was just seen to be ours",
    ("run/rundir.py", "_private_parent"): "names in a base, and a directory made anew",
    ("commands/report.py", "_write"): TOLD,
    ("commands/runs.py", "__init__"): NULL,
    ("watchdog/__main__.py", "_own_stderr"): NEW,
    ("watchdog/incident/abort.py", "begin"): OURS,
    ("watchdog/incident/reporter.py", "_output"): NEW,
    ("watchdog/daemon.py", "_watch"): "no path: a server",
    ("watchdog/daemon.py", "_watch_to_the_end"): OURS,
    ("evidence/flight/request.py", "ask"): OURS,
    ("evidence/flight/request.py", "ask_in_passing"): OURS,
    ("evidence/cgroups.py", "directories"): PROC,
    ("evidence/cgroups.py", "throttled_ns"): PROC,
    ("evidence/exits.py", "_count"): PROC,
    ("evidence/pages/finder.py", "_map"): "a descriptor of untrusted.open_file()",
    ("evidence/processes.py", "read_stat"): PROC,
    ("evidence/processes.py", "cpu_ns"): PROC,
    ("evidence/processes.py", "command_words"): PROC,
    ("evidence/processes.py", "environment"): PROC,
    ("evidence/processes.py", "_listdir"): PROC,
    ("evidence/processes.py", "_wchan"): PROC,
    ("evidence/processes.py", "_status"): PROC,
    ("evidence/sources.py", "_imported"): "the nodes of a syntax tree",
    ("evidence/sources.py", "_listed"): "the names beside a file of the user's, opened by none",
    ("evidence/stacks.py", "refusal"): PROC,
    ("launch/signals.py", "_observe"): PROC,
    ("launch/signals.py", "_state"): PROC,
}
"""(module, function) of what opens a path by itself, and why that is right."""
PURE = frozenset({"diagnosis", "efficiency"})
"""They open nothing (test_imports.py); ``walk`` is that of a syntax tree."""


def opening() -> Iterator[tuple[str, str]]:
    """(module, function) of each call that opens or lists something by its path."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        if module == "safety/untrusted.py" or module.partition("/")[0] in PURE:
            continue
        yield from ((module, name) for name in _calls(ast.parse(path.read_text("utf-8")), ""))


def _calls(node: ast.AST, function: str) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        function = node.name
    if isinstance(node, ast.Call):
        called = node.func
        name = getattr(called, "attr", getattr(called, "id", ""))
        if name in OPENING:
            yield function
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, function)


def test_nothing_else_opens_a_path() -> None:
    found = Counter(opening())
    assert sorted(found.keys() - ALLOWED.keys()) == []
    assert sorted(ALLOWED.keys() - found.keys()) == []


NATIVE = PACKAGE.parent / "native"
OPENED_NATIVELY = {
    "mapping.cpp": "O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK",
    "bell.cpp": "O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK",
    "moments.cpp": "O_RDONLY | O_CLOEXEC",  # of its own /proc
    "dump.cpp": "O_WRONLY | O_CREAT | O_TRUNC | O_EXCL | O_CLOEXEC | O_NOFOLLOW",
}
"""Of a rank's own directory; which flags keep each from following and from waiting."""


def test_the_native_module_opens_nothing_else() -> None:
    call = re.compile(r"(?<![\w.])(?:::)?(?:open|openat|fopen)\((?:[^()]|\([^()]*\))*\)")
    found: dict[str, set[str]] = {}
    for path in sorted(NATIVE.glob("*.cpp")):
        for opened in call.findall(path.read_text("utf-8")):
            if "O_" in opened or opened.startswith("fopen"):
                found.setdefault(path.name, set()).update(re.findall(r"O_\w+", opened))
    assert found == {name: set(flags.split(" | ")) for name, flags in OPENED_NATIVELY.items()}
