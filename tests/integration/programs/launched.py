"""Steps until there is a file ``stop``; rank 1 keeps the others waiting while there is ``hold``.

Where it then finds ``die`` it is killed without a word, and where ``fail`` it raises.
"""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    over = torch.zeros(1)
    while not over.item():
        while rank == 1 and Path("hold").exists():
            time.sleep(0.05)  # culprit
            if Path("die").exists():
                os.kill(os.getpid(), signal.SIGKILL)
            if Path("fail").exists():
                raise ValueError("bad batch")  # raised
        over.fill_(rank == 0 and Path("stop").exists())
        dist.all_reduce(over)
        Path(f"ran-{rank}").touch()
        time.sleep(0.02)
    dist.destroy_process_group()
    print("done", rank, flush=True)


if __name__ == "__main__":
    main()
