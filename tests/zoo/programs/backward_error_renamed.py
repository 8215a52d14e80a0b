"""A rank fails; in DDP's backward the others fail after it, and raise an error of their own."""
# launched with --nproc-per-node=3
# expect: state=failed kind=died reason=exception certainty=proved culprits=2 victims=0,1
# expect: site=culprit exit=1 text=KeyError

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class TrainingError(Exception):
    pass


def batch(step):
    if step == 40 and dist.get_rank() == 2:
        time.sleep(1)
        raise KeyError("no label of sample 1234")  # culprit
    return torch.ones(4, 8)


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    for step in range(60):
        loss = model(batch(step)).sum()
        problem = ""
        try:
            loss.backward()
        except RuntimeError:
            problem = "backward failed"
        if problem:
            raise TrainingError(f"step {step}: {problem}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: process_gone at `raise KeyError("no label of sample 1234")`
