"""One rank evaluates what it is sent now and then; the others train in a group of their own."""
# watched with --suspect-after 3 --hang-after 6
# expect: state=slow kind=missing_peer culprits=0 op=recv group=default_pg exit=0

import time

import torch
import torch.distributed as dist

EVERY = (60, 5)


def train(group, weights, steps):
    for _ in range(steps):
        dist.all_reduce(weights, group=group)
        time.sleep(0.2)


def main():
    dist.init_process_group("gloo")
    rank, evaluator = dist.get_rank(), dist.get_world_size() - 1
    trainers = dist.new_group(list(range(evaluator)))
    weights = torch.ones(8)
    for steps in EVERY:
        if rank == evaluator:
            dist.recv(weights, src=0)  # for longer than --hang-after
        else:
            train(trainers, weights, steps)
        if rank == 0:
            dist.send(weights, dst=evaluator)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
