"""The command line: ``hangwatch [OPTIONS] COMMAND...`` and a few words of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hangwatch import __version__, options
from hangwatch.config import enabled
from hangwatch.errors import HangwatchError, UsageError
from hangwatch.launch import refusal
from hangwatch.notice import say

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hangwatch.config import Config

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

HELP = f"""\
usage: hangwatch [OPTIONS] COMMAND [ARG...]      run COMMAND under watch
       hangwatch [OPTIONS] run -- COMMAND...     the same, for any name of COMMAND
       hangwatch report PATH                     print a stored report again
       hangwatch analyze PATH... [--json]        judge Flight Recorder dumps or rank pages
       hangwatch demo                            see it find a planted hang
       hangwatch doctor                          what works on this machine

hangwatch names the rank that hung a distributed PyTorch job: COMMAND is what you
would start anyway, such as `torchrun --nproc-per-node=8 train.py`.

options, before COMMAND, each also as a variable (--hang-after: HANGWATCH_HANG_AFTER):
{options.describe()}
  --version             print the version
  -h, --help            print this

HANGWATCH=0 turns all of it off: COMMAND runs as if hangwatch were not there.
The exit code is COMMAND's, 128+n if signal n ended it.
"""


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run hangwatch and return its exit code."""
    try:
        return _main(sys.argv[1:] if argv is None else argv, environ)
    except HangwatchError as error:
        say(str(error))
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; the interpreter must not flush to it.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    parsed = options.parse(argv)
    if parsed.wants:
        _print(HELP if parsed.wants == "help" else f"hangwatch {__version__}\n")
        return 0
    words = parsed.words
    own = OWN_COMMANDS.get(words[0]) if words else None
    if own:
        return own(words[1:], environ)
    if words[:1] == ["run"]:
        words = words[2:] if words[1:2] == ["--"] else words[1:]
    if not words or not words[0]:
        raise UsageError("name the COMMAND to watch, e.g. hangwatch torchrun train.py; see --help")
    if not enabled(environ):
        return _execute(words, environ)
    return _watch(words, options.settings(parsed.values, environ), environ)


def _execute(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Become COMMAND, as if hangwatch were not there."""
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    try:
        os.execvpe(words[0], list(words), dict(environ))  # noqa: S606 (the user's command)
    except (OSError, ValueError) as error:
        raise UsageError(refusal(words, error, environ)) from None


def _watch(words: Sequence[str], config: Config, environ: Mapping[str, str]) -> int:
    from hangwatch.supervisor import supervise  # noqa: PLC0415 (not needed for the other words)

    return supervise(words, config, environ)


def _report(words: Sequence[str], environ: Mapping[str, str]) -> int:
    from hangwatch.report import format_verdict, load  # noqa: PLC0415 (not needed to watch)
    from hangwatch.report.terminal import Style  # noqa: PLC0415

    if len(words) != 1 or words[0].startswith("-"):
        raise UsageError("usage: hangwatch report PATH (an incident, a run or a report directory)")
    where, report = load(Path(words[0]))
    style = Style.of(sys.stdout, environ)
    _print("".join(f"{line}\n" for line in format_verdict(report, where, style)))
    return 0


def _analyze(words: Sequence[str], environ: Mapping[str, str]) -> int:
    from hangwatch.analyze import analyze  # noqa: PLC0415 (not needed to watch)
    from hangwatch.report import build_report, format_verdict  # noqa: PLC0415
    from hangwatch.report.terminal import Style  # noqa: PLC0415

    flags = [word for word in words if word.startswith("-")]
    paths = [Path(word) for word in words if not word.startswith("-")]
    if not paths or set(flags) - {"--json"}:
        raise UsageError(
            "usage: hangwatch analyze PATH... [--json] (files or directories of Flight Recorder "
            "dumps, of rank pages, or an incident)"
        )
    evidence, unreadable = analyze(paths)
    report = build_report(evidence)
    if flags or report["verdict"]["state"] == "ok":  # else they are in what is printed
        for what in unreadable:
            say(what)
    if flags:
        _print(json.dumps(report, indent=1) + "\n")
    else:
        style = Style.of(sys.stdout, environ)
        lines = format_verdict(report, style=style, stored=False)
        _print("".join(f"{line}\n" for line in lines))
    return 0


def _doctor(words: Sequence[str], environ: Mapping[str, str]) -> int:
    from hangwatch.doctor import examine  # noqa: PLC0415

    if words:
        raise UsageError("usage: hangwatch doctor")
    _print("".join(f"{finding}\n" for finding in examine(environ)))
    return 0


def _demo(words: Sequence[str], environ: Mapping[str, str]) -> int:
    from hangwatch.demo import demonstrate  # noqa: PLC0415

    if words:
        raise UsageError("usage: hangwatch demo")
    return demonstrate(environ)


OWN_COMMANDS: dict[str, Callable[[Sequence[str], Mapping[str, str]], int]] = {
    "report": _report,
    "analyze": _analyze,
    "doctor": _doctor,
    "demo": _demo,
}


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
