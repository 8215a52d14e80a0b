"""The odd circumstances in which the kind ``start`` starts jobs.

Each is a name and what is odd. In texts ``~`` is the directory of the run at the
beginning of a word; bytes that are no UTF-8 stand as surrogates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

BYTE = "\udcff\udcfe"
"""Two bytes that are no UTF-8, as Python shows them."""
MIB = 1 << 20
DEEP = "/".join(["d" * 200] * 18)


@dataclass(frozen=True, slots=True)
class Circumstance:
    """How a job is started."""

    start: Mapping[str, Any] = field(default_factory=dict)
    """For programs/start.py."""
    env: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    """Of hangwatch."""
    arguments: tuple[str, ...] = ()
    """Of the program."""
    reports: str = "~/hangwatch-reports"
    """Where they are to be found, if anywhere."""
    python: tuple[str, ...] = ()
    """Options of the interpreter that hangwatch runs in."""
    may_lose: bool = False
    """hangwatch lacks what it needs, and may say so instead of naming who stalls."""
    returns: bool = False
    """COMMAND goes to the directory of the run first: torch does not run in one that is gone."""
    program: str = ""
    """The name under which the program is started."""


def _reports(path: str) -> Circumstance:
    return Circumstance(options=("--report-dir", path), reports=path)


def _cwd(reports: str = "~/hangwatch-reports", **start: Any) -> Circumstance:
    options = () if reports.startswith("~/odd") else ("--report-dir", reports)
    start = {"cwd": "~/odd", **start}
    return Circumstance(
        start=start, options=options, reports=reports, returns=bool(start.get("gone"))
    )


def _env(**env: str) -> Circumstance:
    return Circumstance(env=env)


def _limits(**limits: int) -> Circumstance:
    return Circumstance(start={"limits": limits}, may_lose=True)


ALL: dict[str, Circumstance] = {
    # Bytes.
    "argument-bytes": Circumstance(arguments=(f"--name={BYTE}",)),
    "argument-controls": Circumstance(arguments=("a\nb\r\x1b[31m\x07\t", "\u202e\U0001f600")),
    "argument-surrogate": Circumstance(arguments=("\udced\udca0\udc80",)),
    "arguments-many": Circumstance(arguments=("x" * 1000,) * 200),
    "argument-long": Circumstance(arguments=("y" * 120_000,)),
    "program-bytes": Circumstance(program=f"pr{BYTE}.py"),
    "cwd-bytes": Circumstance(
        start={"cwd": f"~/odd{BYTE}"}, reports=f"~/odd{BYTE}/hangwatch-reports"
    ),
    "reports-bytes": _reports(f"~/r{BYTE}"),
    "base-bytes": _env(HANGWATCH_DIR=f"~/b{BYTE}"),
    "tmpdir-bytes": _env(TMPDIR=f"~/t{BYTE}"),
    "variable-bytes": _env(**{"MY_VARIABLE": BYTE, f"MY{BYTE}": "1"}),
    "pythonpath-bytes": _env(PYTHONPATH=f"~/p{BYTE}::"),
    "locale-bytes": Circumstance(
        arguments=(BYTE, "\u00fc"),
        env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ),
    "reports-locale": Circumstance(
        options=("--report-dir", "~/r\u00fc"),
        reports="~/r\u00fc",
        env={"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ),
    # Directories.
    "cwd-gone": _cwd(gone=True),
    "cwd-gone-reports": _cwd(reports="~/odd/hangwatch-reports", gone=True),
    "cwd-readonly": _cwd(reports="~/odd/hangwatch-reports", mode=0o555, plain=True),
    "cwd-closed": _cwd(mode=0o000, plain=True),
    "cwd-deep": _cwd(deep=18),
    "cwd-deep-reports": _cwd(reports=f"~/odd/{DEEP}/hangwatch-reports", deep=18),
    "cwd-link": Circumstance(start={"cwd": "~/link"}, reports="~/aim/hangwatch-reports"),
    "reports-long": _reports("~/" + "/".join(["r" * 200] * 25)),
    "reports-file": _reports("~/stdout"),
    "reports-dash": Circumstance(options=("--report-dir=-x",), reports="~/-x"),
    "tmpdir-missing": _env(TMPDIR="~/nowhere"),
    "tmpdir-readonly": Circumstance(start={"plain": True}, env={"TMPDIR": "~/closed"}),
    "base-missing": _env(HANGWATCH_DIR="~/nowhere"),
    "base-relative": _env(HANGWATCH_DIR="base"),
    "base-readonly": Circumstance(start={"plain": True}, env={"HANGWATCH_DIR": "~/closed"}),
    "memory-full": Circumstance(start={"mount": {"~/base": 64 << 10, "/dev/shm": 64 << 10}}),  # noqa: S108
    "memory-readonly": Circumstance(start={"mount": {"~/base": 0, "/dev/shm": 0}}),  # noqa: S108
    "memory-short": Circumstance(start={"mount": {"~/base": 17 * MIB}}),
    "home-unset": Circumstance(start={"unset": ["HOME", "USER", "LOGNAME", "PATH", "SHELL"]}),
    "home-missing": _env(HOME="/nowhere", XDG_RUNTIME_DIR="/nowhere", XDG_CONFIG_HOME=""),
    # Limits.
    "files-64": _limits(NOFILE=64),
    "file-size": _limits(FSIZE=64 << 10),
    "address-space": _limits(AS=6 << 30),
    "stack": _limits(STACK=MIB, CORE=0, MEMLOCK=0, SIGPENDING=16, MSGQUEUE=0),
    "cpu": _limits(CPU=60),
    # Streams.
    "stdin-closed": Circumstance(start={"close": [0]}),
    "stderr-closed": Circumstance(start={"close": [2]}),
    "streams-closed": Circumstance(start={"close": [0, 1, 2]}),
    "stderr-full": Circumstance(start={"stderr": "full"}),
    "stderr-busy": Circumstance(start={"stderr": "busy"}),
    "stderr-broken": Circumstance(start={"stderr": "broken"}),
    "stderr-device": Circumstance(start={"stderr": "device"}),
    # The interpreter.
    "python-strict": _env(PYTHONWARNINGS="error", PYTHONDEVMODE="1", PYTHONASYNCIODEBUG="1"),
    "python-ascii": _env(
        PYTHONIOENCODING="ascii:strict", PYTHONUTF8="0", LANG="C", PYTHONUNBUFFERED="1"
    ),
    "python-safe": _env(PYTHONSAFEPATH="1", PYTHONNOUSERSITE="1", PYTHONDONTWRITEBYTECODE="1"),
    "python-debug": _env(PYTHONMALLOC="debug", PYTHONFAULTHANDLER="1", PYTHONHASHSEED="0"),
    "python-trace": _env(PYTHONTRACEMALLOC="1", PYTHONPROFILEIMPORTTIME="1"),
    "python-odd": _env(PYTHONOPTIMIZE="2", PYTHONINTMAXSTRDIGITS="640", PYTHONNODEBUGRANGES="1"),
    "python-options": Circumstance(
        python=("-X", "dev", "-X", "utf8=0", "-W", "error", "-OO", "-B")
    ),
    # The process.
    "umask-all": Circumstance(start={"umask": 0o777}),
    "umask-none": Circumstance(start={"umask": 0o000, "nice": 19, "idle": True}),
    "signals-blocked": Circumstance(start={"block": True}),
    "signals-ignored": Circumstance(
        start={"ignore": ["SIGHUP", "SIGINT", "SIGTERM", "SIGQUIT", "SIGPIPE", "SIGUSR1"]}
    ),
    "terminal": Circumstance(start={"terminal": True, "open": 300}),
    # The options.
    "run-id-long": Circumstance(options=("--run-id", "r" * 128, "--interval", "0.05")),
    "hook-missing": Circumstance(
        options=("--hook", "/nowhere/hook %s", "--stacks", "native", "-v")
    ),
}
