"""Steps until there is a file ``stop``; rank 1 keeps the others waiting while there is ``hold``.

``dies``: rank 1 is killed without a word, the first time that the launcher starts it.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if sys.argv[1:] == ["dies"] and first and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    over = torch.zeros(1)
    while not over.item():
        while rank == 1 and Path("hold").exists():
            time.sleep(0.05)  # culprit
        over.fill_(rank == 0 and Path("stop").exists())
        dist.all_reduce(over)
        Path(f"ran-{rank}").touch()
        time.sleep(0.02)
    dist.destroy_process_group()
    print("done", rank, flush=True)


if __name__ == "__main__":
    main()
