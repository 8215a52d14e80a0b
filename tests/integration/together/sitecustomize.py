"""Lets no rank begin its program before all have loaded torch: hangwatch is told to be hasty.

On a busy machine the ranks of one launcher load it seconds apart, and it would be right to say so.
"""

import os
import sys
import time
from pathlib import Path


def meet(where: Path) -> None:
    """Return once all ranks of this incarnation have come here. A rank that execs has met."""
    incarnation = f"{os.environ['WORLD_SIZE']}-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    Path(where, f"came-{incarnation}-{os.environ['RANK']}").touch()
    while len(list(where.glob(f"came-{incarnation}-*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.02)


if "RANK" in os.environ and os.environ["TOGETHER"] in sys.orig_argv:
    import torch.distributed  # noqa: F401 (its seconds are what differs)

    meet(Path.cwd())
