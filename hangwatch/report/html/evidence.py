"""The incident as plain text, to be copied into a bug report."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from hangwatch.console import printable
from hangwatch.report.html.ranksets import shortened
from hangwatch.report.schema import Report
from hangwatch.report.terminal import format_verdict

MOST_LINES = 400
LONGEST = 400
"""Characters of a line."""


def evidence(report: Report) -> str:
    """What the terminal said, and what a maintainer asks for next."""
    lines = [shortened(printable(line), LONGEST) for line in _lines(report)]
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = ["..."]
    return "\n".join(lines)


def _lines(report: Report) -> Iterator[str]:
    run = report["run"]
    yield from format_verdict(report, stored=False)
    yield ""
    yield f"command: {shlex.join(map(str, run['command']))}"
    yield f"ranks: {run['world_size']} on {len(run['nodes'])} nodes, restart {run['restart']}"
    versions = [f"{name} {value}" for name, value in run["versions"].items()]
    yield f"versions: {', '.join(versions) or 'unknown'}"
    for name, value in report["environment"].items():
        yield f"environment: {name}={value}"
    for moment in report["timeline"]:
        yield f"{moment['at']} {moment['what']}"
    yield from _culprits(report)


def _culprits(report: Report) -> Iterator[str]:
    """Stacks of the first culprits, and of what they wait for."""
    for rank in report["ranks"]:
        if rank["rank"] not in report["verdict"]["culprits"][:2]:
            continue
        yield ""
        names = [
            ("main thread", rank["stack"]),
            *(
                (f"worker {child['pid']}", thread["stack"])
                for child in rank["children"]
                for thread in child["threads"]
            ),
        ]
        for name, stack in names:
            if stack in report["stacks"]:
                yield f"rank {rank['rank']}, {name}, innermost frame first:"
                for frame in report["stacks"][stack]["frames"]:
                    yield f"  {frame['file']}:{frame['line']} {frame['function']}"
