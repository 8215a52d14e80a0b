"""A rank leaves one batch out after an error, and with it one of two alike collectives.

From then on its gradients are summed with the others' metrics. Nothing is stuck until
the others wait for the last one, while it is at what comes after the training.
"""

import time

import torch
import torch.distributed as dist


def evaluate(rank, step):
    if rank == 2 and step == 30:
        raise ValueError("corrupt sample")
    return torch.ones(4)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(800):
        gradient = torch.ones(4)
        dist.all_reduce(gradient)
        try:
            metric = evaluate(rank, step)
        except ValueError:
            continue
        dist.all_reduce(metric)  # left out
        time.sleep(0.01)
    time.sleep(3600)


if __name__ == "__main__":
    main()
