"""A call refuses its arguments on one rank; the others end in order when they are asked to."""
# expect: state=failed kind=died reason=exception culprits=2
# expect: op=all_reduce group=default_pg site=culprit certainty=proved|likely
# launched with --nproc-per-node=3

import signal
import sys
import time

import torch
import torch.distributed as dist


def leave(*_):
    sys.exit(1)


def main():
    signal.signal(signal.SIGTERM, leave)
    dist.init_process_group("gloo")
    for step in range(100):
        values = torch.ones(4)
        if step == 50 and dist.get_rank() == 2:
            dist.all_reduce(values, op=dist.ReduceOp.BAND)  # culprit
        elif step == 50:
            time.sleep(30)
        dist.all_reduce(values)


if __name__ == "__main__":
    main()

# cause: process_gone at `dist.all_reduce(values, op=dist.ReduceOp.BAND)`
