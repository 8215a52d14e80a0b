"""Steps until there is a file ``stop``; rank 1 keeps the others waiting while there is ``hold``.

Where it then finds ``die`` it is killed without a word, and where ``fail`` it raises.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from assembled import assemble


def main() -> None:
    assemble(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
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
    # At once: print() writes what it is given one by one where nothing is buffered.
    sys.stdout.write(f"done {rank}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
