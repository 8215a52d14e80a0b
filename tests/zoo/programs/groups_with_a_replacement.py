"""A trainer makes groups again and again with a helper that has replaced another."""
# expect: state=ok exit=0
# launched with --nproc-per-node=1

import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

STEPS = 70  # more than an agent remembers of those that are over
WORK_S = 4.0


def helper(port, steps, ready):
    ready.set()  # it has imported torch, which may take long
    open_world(1, port)
    take_steps(1, steps)
    dist.destroy_process_group()


def main():
    for steps in (1, STEPS):
        port = unused_port()
        context = mp.get_context("spawn")
        ready = context.Event()
        process = context.Process(target=helper, args=(port, steps, ready))
        process.start()
        ready.wait()
        open_world(0, port)
        take_steps(0, steps)
        dist.destroy_process_group()
        process.join()


def take_steps(rank, steps):
    for _ in range(steps):
        alone, both = dist.new_group([0]), dist.new_group([0, 1])
        dist.all_reduce(torch.ones(2), group=both)
        dist.destroy_process_group(both)
        if rank == 0:
            dist.destroy_process_group(alone)
        time.sleep(0.05)
    both = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(2), group=both)
    if rank == 1:
        time.sleep(WORK_S)
    dist.all_reduce(torch.ones(2), group=both)


def open_world(rank, port):
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # this store is no launcher's
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)


def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    main()
