"""The command line: ``hangwatch [OPTIONS] COMMAND...`` and the subcommands."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module

from hangwatch import __version__
from hangwatch.console import say
from hangwatch.errors import HangwatchError, UsageError
from hangwatch.launch.command import become
from hangwatch.settings.config import describe_options, enabled, parse_options, read_config

Subcommand = Callable[[Sequence[str], Mapping[str, str]], int]
"""Gets its arguments and the environment; returns the exit code."""

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

HELP = f"""\
usage: hangwatch [OPTIONS] COMMAND [ARG...]      run COMMAND under watch
       hangwatch [OPTIONS] run -- COMMAND...     the same, for any name of COMMAND
       hangwatch top [RUN]                       watch the ranks of a watched job, live
       hangwatch inspect [PID...]                where the ranks of any torch job are now
       hangwatch report [PATH]                   print stored reports: text, JSON, HTML, a list
       hangwatch analyze PATH... [--json]        judge Flight Recorder dumps or rank pages
       hangwatch demo                            see it find a planted hang
       hangwatch doctor [-- COMMAND...]          check this machine (or COMMAND) for causes of hangs
       hangwatch path                            directory for PYTHONPATH, with HANGWATCH=1, if
                                                 COMMAND's Python is not the one of hangwatch
`hangwatch top --help`, and so on, says more of each.

hangwatch names the rank that hung a distributed PyTorch job: COMMAND is what you
would start anyway, such as `torchrun --nproc-per-node=8 train.py`.

options, before COMMAND, each also as a variable (--hang-after: HANGWATCH_HANG_AFTER):
{describe_options()}
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
        # The reader of our output has gone; the interpreter must not flush to it.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    parsed = parse_options(argv)
    if parsed.wants:
        _print(HELP if parsed.wants == "help" else f"hangwatch {__version__}\n")
        return 0
    words = parsed.words
    own = OWN_COMMANDS.get(words[0]) if words else None
    if own:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Reports quote code in any language, and a terminal may know ASCII alone.
            sys.stdout.reconfigure(errors="backslashreplace")
        return own(words[1:], environ)
    if words[:1] == ["run"]:
        words = words[2:] if words[1:2] == ["--"] else words[1:]
    if not words or not words[0]:
        raise UsageError("name the COMMAND to watch, e.g. hangwatch torchrun train.py; see --help")
    if not enabled(environ):
        become(words, environ)
    settings = read_config(parsed.values, environ)
    try:
        from hangwatch.launch.supervisor import supervise  # noqa: PLC0415 (subcommands need none)
    except Exception as error:  # noqa: BLE001 (too little memory, files that cannot be read)
        say(f"the job runs unwatched: {type(error).__name__}: {error}")
        become(words, environ)
    return supervise(words, settings, environ)


def _late(module: str, name: str) -> Subcommand:
    """Return a subcommand that is imported when it is called: a watched job needs none."""

    def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
        subcommand: Subcommand = getattr(import_module(module), name)
        return subcommand(words, environ)

    return run


def _demo(words: Sequence[str], environ: Mapping[str, str]) -> int:
    from hangwatch.commands import Arguments  # noqa: PLC0415 (as those of _late)
    from hangwatch.commands.demo import demonstrate  # noqa: PLC0415

    Arguments("demo", "Run a small job in which one rank stalls, under watch.").parse_args(words)
    return demonstrate(environ)


def _path(words: Sequence[str], environ: Mapping[str, str]) -> int:
    del environ
    from hangwatch.agent.environment import sitecustomize_directory  # noqa: PLC0415 (as above)
    from hangwatch.commands import Arguments  # noqa: PLC0415

    description = (
        "Print the directory by which a Python loads hangwatch that it is not installed for. With "
        "HANGWATCH=1 and this in PYTHONPATH the ranks of a job have it watched by themselves."
    )
    Arguments("path", description).parse_args(words)
    try:
        _print(f"{sitecustomize_directory()}\n")
    except FileNotFoundError as error:
        raise UsageError(str(error)) from None
    return 0


OWN_COMMANDS: dict[str, Subcommand] = {
    "top": _late("hangwatch.commands.top", "top"),
    "inspect": _late("hangwatch.commands.inspection", "inspect"),
    "report": _late("hangwatch.commands.report", "report"),
    "analyze": _late("hangwatch.commands.analyze", "analyze"),
    "doctor": _late("hangwatch.commands.doctor.command", "doctor"),
    "demo": _demo,
    "path": _path,
}


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
