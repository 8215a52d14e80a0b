"""One incarnation fails, the next one hangs, and the last one comes to its end."""

import os
import sys
import time

import torch
import torch.distributed as dist

INCARNATION = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def main():
    dist.init_process_group("gloo")  # its timeout is 30 minutes
    rank = dist.get_rank()
    for step in range(30):
        if INCARNATION == 0 and rank == 1 and step == 20:
            raise OSError("the file server was away")  # first failure
        if INCARNATION == 1 and rank == 2 and step == 20:
            dist.barrier()  # second failure
        dist.all_reduce(torch.ones(8))
        time.sleep(0.02)
    dist.destroy_process_group()
    if rank == 0:
        print(f"finished in incarnation {INCARNATION}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
