"""Ranks wait for a file that says that an epoch is prepared; one looks for another name."""
# launched with --nproc-per-node=3
# expect: state=hang kind=never_entered culprits=1 victims=0,2
# expect: site=culprit certainty=likely

import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist


def wait_for(path, look_s=0.1):
    while not path.exists():
        time.sleep(look_s)  # culprit


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = [tempfile.mkdtemp()] if rank == 0 else [None]
    dist.broadcast_object_list(folder)
    for epoch in range(6):
        if rank == 0:
            Path(folder[0], f"epoch-{epoch}.ready").touch()
        name = f"epoch-{epoch}.ready" if (rank, epoch) != (1, 3) else f"epoch_{epoch}.ready"
        wait_for(Path(folder[0], name))
        dist.all_reduce(torch.ones(8))  # victim
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `while not path.exists():`
