"""A rank gives up on a bad batch and leaves; the others retry, and raise an error of their own.

What they raise is raised outside of the handler, says "after 3 attempts" itself, and has, as all
that is raised in this program, an import that failed long before for its context.
"""
# launched with --nproc-per-node=3
# expect: state=failed kind=died reason=exited culprits=2 victims=0,1 op=all_reduce exit=1
# expect: certainty=proved|likely

import os
import time

import torch
import torch.distributed as dist


class TrainError(Exception):
    pass


def load(batch):
    if batch == 50 and dist.get_rank() == 2:
        raise KeyError("bad batch")


def step():
    for _ in range(3):
        try:
            return dist.all_reduce(torch.ones(8))
        except RuntimeError:
            time.sleep(0.02)
    raise TrainError("training step failed (after 3 attempts)")


def main():
    dist.init_process_group("gloo")
    try:
        for batch in range(100):
            load(batch)
            step()
    except KeyError as error:
        print("giving up:", error)
        dist.destroy_process_group()
        time.sleep(0.3)
        os._exit(1)


if __name__ == "__main__":
    try:
        import flash_attention_of_nobody  # noqa: F401 (optional)
    except ImportError:
        main()

# cause: process_gone at `raise KeyError("bad batch")` | process_gone at `os._exit(1)`
