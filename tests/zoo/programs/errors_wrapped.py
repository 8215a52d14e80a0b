"""A rank ends itself without a word; the others raise errors of their own for what c10d raised."""
# expect: state=failed kind=died reason=exited culprits=2 victims=0,1,3
# expect: op=all_reduce group=default_pg certainty=proved|likely

import os

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    for step in range(100):
        if step == 50 and dist.get_rank() == 2:
            os._exit(3)  # culprit
        try:
            dist.all_reduce(torch.ones(8))  # victim
        except RuntimeError:
            raise ValueError("training step failed") from None


if __name__ == "__main__":
    main()

# cause: process_gone at `os._exit(3)`
