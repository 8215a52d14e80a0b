"""The user's command that is run at a verdict."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from hangwatch.console import News, printable
from hangwatch.model.report import Evidence
from hangwatch.run.test_hooks import Point, reach

HOOK_S = 60.0
HOOK_CULPRITS = 1000
"""So many culprits are named to a hook: an environment has bounds (execve(2))."""
_SAID_BYTES = 4096


def hook_variables(evidence: Evidence, report: Path | None) -> dict[str, str]:
    """What a hook finds in its environment; the headline is one line.

    report: the directory of the incident's report, None where it could not be written.
    """
    verdict = evidence.verdicts[0]
    return {
        "HANGWATCH_HEADLINE": printable(verdict.headline),
        "HANGWATCH_REPORT": str(report) if report else "",
        "HANGWATCH_RUN_ID": evidence.run.run_id,
        "HANGWATCH_STATE": verdict.state.value,
        "HANGWATCH_KIND": verdict.kind.value if verdict.kind else "",
        "HANGWATCH_CULPRITS": ",".join(map(str, verdict.culprits[:HOOK_CULPRITS])),
    }


async def run_hook(
    command: str,
    report: Path | None,
    variables: Mapping[str, str],
    news: News,
    timeout_s: float = HOOK_S,
) -> None:
    """Run the user's command with the report's directory as its argument.

    variables: added to its environment. Raises nothing: what fails is news.
    Its output is shown only if it fails, which is said once. It runs in a
    session of its own, so that it may go on when the watchdog has ended.
    """
    where = str(report) if report else ""
    with _output() as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(command),
                where,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **variables},
            )
        except (OSError, ValueError) as error:
            news.lose("hook", f"--hook {command}: it cannot be run ({error})")
            return
        reach(Point.HOOK_STARTED)
        try:
            await asyncio.wait_for(process.wait(), timeout_s)
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            news.lose("hook", f"--hook {command}: not done after {timeout_s:g} s, it was ended")
            return
        if process.returncode:
            code, last = process.returncode, _last_line(output)
            news.lose("hook", f"--hook {command}: exit code {code} ({last})")


def _output() -> IO[bytes]:
    """A file without a name for what a hook prints: unlike a pipe it outlives us."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return Path(os.devnull).open("w+b")


def _last_line(output: IO[bytes]) -> str:
    """The last line that was written, for people."""
    try:
        output.seek(max(0, output.seek(0, os.SEEK_END) - _SAID_BYTES))
        lines = output.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return "its output is lost"
    return lines[-1] if lines else "it said nothing"
