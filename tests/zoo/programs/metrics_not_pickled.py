"""Metrics of one rank cannot be pickled: it logs that, and goes on without the others."""
# launched with --nproc-per-node=3
# expect: state=hang kind=op_mismatch culprits=1 victims=0,2 certainty=proved
# expect: site=culprit

import logging
import threading

import torch
import torch.distributed as dist


def collect(metrics):
    collected = [None] * dist.get_world_size()
    try:
        dist.all_gather_object(collected, metrics)  # victim
    except TypeError:
        logging.getLogger("train").warning("metrics were not collected")
    return collected


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for epoch in range(10):
        gradient = torch.ones(32)
        for _ in range(4):
            dist.all_reduce(gradient)  # culprit
        timer = threading.Lock() if (rank, epoch) == (1, 6) else 0.5
        collect({"epoch": epoch, "timer": timer})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: swallowed_exception at `except TypeError:`
