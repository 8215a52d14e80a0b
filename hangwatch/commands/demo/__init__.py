"""``hangwatch demo``: a small real job in which one rank's data loader stalls."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from hangwatch.commands import timing
from hangwatch.errors import ReportError, UsageError
from hangwatch.launch.command import Signals
from hangwatch.launch.signals import FORWARDED
from hangwatch.launch.supervisor import supervise
from hangwatch.report.files import load_incident
from hangwatch.settings.config import Config, OnHang, new_run_id

RANKS = 4
CULPRIT = 2
REASON = "data_loading"
PROGRAM = Path(__file__).with_name("train.py")
EXIT_MISSED = 1


def demonstrate(environ: Mapping[str, str]) -> int:
    """Run the job under watch; return 0 if the verdict names the planted fault, else 1.

    Raises UsageError if torch is not installed.
    """
    if find_spec("torch") is None:
        raise UsageError("the demo trains a small model: pip install torch first")
    settings = Config(
        run_id=f"demo-{new_run_id()}",
        suspect_after_s=timing.DEMO_SUSPECT_S,
        hang_after_s=timing.DEMO_HANG_S,
        on_hang=OnHang.ABORT,
    )
    _say(
        f"{RANKS} processes train a small model on the CPU. In a while the data loader of rank\n"
        f"{CULPRIT} will stall, and all ranks will hang. The job knows nothing of hangwatch:\n\n"
        f"  hangwatch --suspect-after {timing.DEMO_SUSPECT_S:g} --hang-after {timing.DEMO_HANG_S:g}"
        f" --on-hang abort \\\n"
        f"      torchrun --standalone --nproc-per-node={RANKS} {PROGRAM.name}\n"
    )
    before = Signals.block(FORWARDED)
    try:
        code = supervise(
            [*_torchrun(), "--standalone", f"--nproc-per-node={RANKS}", str(PROGRAM)],
            settings,
            # torchrun would set it too, and say so at length.
            {"OMP_NUM_THREADS": "1", **environ},
            before,
        )
    finally:
        before.forget()
    _say(f"\nThe job has ended with exit code {code}.")
    return _judge(Path(settings.report_dir) / settings.run_id)


def _torchrun() -> list[str]:
    """Return the torchrun of this Python; its module if the script is not installed."""
    script = Path(sys.executable).with_name("torchrun")
    return [str(script)] if script.exists() else [sys.executable, "-m", "torch.distributed.run"]


def _judge(run_dir: Path) -> int:
    """Compare the last verdict with the planted fault."""
    _say(f"planted: rank {CULPRIT}, {REASON}: a worker of its loader sleeps in {PROGRAM.name}")
    try:
        where, report = load_incident(run_dir)
    except ReportError as error:
        _say(f"found:   nothing ({error})")
        return EXIT_MISSED
    verdict = report["verdict"]
    named = ", ".join(str(rank) for rank in verdict["culprits"])
    _say(f"found:   rank {named}, {verdict['reason']}: {verdict['headline']}")
    right = verdict["culprits"] == [CULPRIT] and verdict["reason"] == REASON
    _say("The verdict is right." if right else "The verdict is WRONG.")
    _say(f"Print it again with: hangwatch report {where}")
    return 0 if right else EXIT_MISSED


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
