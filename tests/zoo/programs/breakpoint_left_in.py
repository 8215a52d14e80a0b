"""One rank runs into a breakpoint and waits for commands that nobody can type."""
# expect: state=hang kind=never_entered reason=debugger culprits=2 victims=0,1,3
# expect: op=all_reduce group=default_pg function=check certainty=likely|possible

import os
import pdb
import sys

import torch
import torch.distributed as dist


def check(gradient):
    if gradient.isnan().any():
        pdb.set_trace()
    return gradient


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    sys.stdin = os.fdopen(os.pipe()[0])  # a launcher's workers have no terminal
    weights = torch.zeros(64)
    for step in range(40):
        gradient = torch.randn(64)
        if rank == 2 and step == 15:
            gradient[3] = float("nan")
        dist.all_reduce(check(gradient))
        weights -= 0.01 * gradient
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `pdb.set_trace()`
