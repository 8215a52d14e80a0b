"""Makes the pictures of the pages in docs/pictures, from real runs.

A pipeline with data and tensor parallel groups runs under watch until the reader of
one rank hangs, and a job whose rank 0 packs samples to its end. The directory that they
ran in is shown as /home/ada.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

TESTS = Path(__file__).resolve().parent
for place in ("integration", "suite"):
    sys.path.insert(0, str(TESTS / place))

from browser import WIDE, chromium, opened  # noqa: E402 (found by the line above)
from harness import reaches, watch  # noqa: E402

from hangwatch.report.files import load  # noqa: E402
from hangwatch.report.html import render_page, render_straggler  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping

    from playwright.sync_api import Browser

PICTURES = TESTS.parent / "docs/pictures"
PROGRAM = TESTS / "zoo/programs/mesh3d_stuck_reader.py"
HOME = "/home/ada"
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
SLOW_PROGRAM = TESTS / "integration/programs/rank_zero_logs.py"
SLOW_S = "60"
PARTS = {
    "post-mortem-top": ("header", "#waits"),
    "post-mortem-calls": ("#calls", "#calls"),
    "post-mortem-stacks": ("#progress", "#stacks .tree"),
}
"""Name of a picture to the first and the last element on it."""
SLOW_PARTS = {"straggler": ("header", "#lines")}
MARGIN = 14


def incident() -> Any:
    """The report of the run."""
    directory = Path(tempfile.mkdtemp(prefix="hangwatch-pictures-"))
    try:
        program = directory / "pretrain.py"
        # Without what tells the tests which line it is.
        program.write_text(
            re.sub(r"  # (culprit|victim)$", "", PROGRAM.read_text(), flags=re.MULTILINE)
        )
        result = watch(
            program,
            *("--suspect-after", "3", "--hang-after", "6", "--run-id", "pretrain-7"),
            nproc=8,
            env={"OMP_NUM_THREADS": "1"},
            until=reaches("hang"),
        )
        return moved(result.reports[-1], directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def straggler() -> Any:
    """The report of the slow run."""
    with tempfile.TemporaryDirectory(prefix="hangwatch-pictures-") as name:
        directory = Path(name)
        program = directory / "pretrain.py"
        shutil.copy(SLOW_PROGRAM, program)
        options = ("--straggler-window", "15", "--run-id", "pretrain-8", "--report-dir", name)
        command = ["torchrun", "--nproc-per-node", "3", str(program), SLOW_S]
        subprocess.run(  # noqa: S603 (our own)
            [sys.executable, "-m", "hangwatch", *options, *command], cwd=directory, check=True
        )
        return moved(load(directory / "pretrain-8")[1], directory)


def moved(report: Any, directory: Path) -> Any:
    """Show the directory as another one."""
    return json.loads(json.dumps(report).replace(str(directory), HOME))


def take(browser: Browser, page: Path, parts: Mapping[str, tuple[str, str]]) -> None:
    """Take each part in both themes."""
    for scheme in SCHEMES:
        with opened(browser, page, scheme=scheme) as found:
            for name, (first, last) in parts.items():
                above, below = (
                    found.page.locator(element).first.bounding_box() for element in (first, last)
                )
                if above is None or below is None:
                    raise SystemExit(f"{name}: the page has no {first} or no {last}")
                top = max(0.0, above["y"] - MARGIN)
                bottom = below["y"] + below["height"] + MARGIN
                path = PICTURES / f"{name}-{scheme}.png"
                clip = {"x": 0.0, "y": top, "width": float(WIDE), "height": bottom - top}
                found.page.screenshot(path=path, full_page=True, clip=clip)  # type: ignore[arg-type]
                sys.stdout.write(f"{path.name}: {path.stat().st_size / 1000:.0f} kB\n")
            if found.troubles:
                raise SystemExit("\n".join(found.troubles))


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, chromium() as browser:
        page = Path(directory) / "index.html"
        page.write_text(render_page(incident()), "utf-8")
        take(browser, page, PARTS)
        page.write_text(render_straggler(straggler()), "utf-8")
        take(browser, page, SLOW_PARTS)


if __name__ == "__main__":
    main()
