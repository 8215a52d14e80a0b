"""The first rank hands out the work and is done; later one of the workers is killed."""
# launched with --nproc-per-node=3
# expect: state=failed|hang kind=died reason=signal certainty=proved|likely culprits=2 victims=1
# expect: op=all_reduce

import os
import signal
import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    workers = dist.new_group([1, 2])
    shares = torch.arange(32.0)
    dist.broadcast(shares, src=0)
    if rank == 0:
        return
    for step in range(60):
        if rank == 2 and step == 40:
            time.sleep(2)  # the first rank is gone since
            os.kill(os.getpid(), signal.SIGKILL)
        gradient = shares * rank
        dist.all_reduce(gradient, group=workers)
        time.sleep(0.02)


if __name__ == "__main__":
    main()

# cause: process_gone at `os.kill(os.getpid(), signal.SIGKILL)` | process_gone
