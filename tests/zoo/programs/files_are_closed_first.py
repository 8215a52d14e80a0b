"""A bad record raises on one rank, and what closes its files on the way out waits for all."""
# launched with --nproc-per-node=3
# expect: state=hang kind=finished_early certainty=proved culprits=1 victims=0,2 op=all_reduce
# expect: site=culprit victim_site=victim

import contextlib

import torch
import torch.distributed as dist


class Files:
    def __init__(self):
        self.open = []

    def close(self):
        dist.barrier()  # culprit
        self.open.clear()


def checked(record):
    if record < 0:
        raise ValueError(f"record {record} has no label")
    return record


def record_of(step):
    return -step if step == 23 and dist.get_rank() == 1 else step


def train(steps):
    with contextlib.ExitStack() as stack:
        files = Files()
        stack.callback(files.close)
        for step in range(steps):
            gradient = torch.full((4,), float(checked(record_of(step))))
            dist.all_reduce(gradient)  # victim


def main():
    dist.init_process_group("gloo")
    train(60)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: swallowed_exception at `raise ValueError(f"record {record} has no label")`
