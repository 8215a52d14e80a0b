"""What is done at a verdict beside telling people: the hook, and ending the ranks."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from hangwatch.notice import printable
from hangwatch.watchdog.processes import PROC, alive

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hangwatch.types import Evidence
    from hangwatch.watchdog.news import News

HOOK_S = 60.0
HOOK_CULPRITS = 1000
"""So many culprits are named to a hook: an environment has bounds (execve(2))."""
TERM_S = 2.0
ABORTED = "aborted"
"""File in the run directory that tells the supervisor that ranks were ended."""
_LOOK_S = 0.05
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


async def end_ranks(
    ranks: Iterable[tuple[int, int]], run_dir: Path, news: News, proc: str = PROC
) -> int:
    """SIGTERM, then SIGKILL, to processes known by pid and start; how many there were.

    The file ABORTED is made first: the launcher may end at once.
    """
    targets = [one for one in ranks if alive(*one, proc)]
    if not targets:
        return 0
    try:
        (run_dir / ABORTED).touch(mode=0o600)
    except OSError as error:
        news.lose("aborted", f"the exit code will not be 75: {error.strerror}")
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid, start_ticks in targets:
            if alive(pid, start_ticks, proc):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        deadline = asyncio.get_running_loop().time() + TERM_S
        while any(alive(*one, proc) for one in targets):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(_LOOK_S)
    return len(targets)


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
