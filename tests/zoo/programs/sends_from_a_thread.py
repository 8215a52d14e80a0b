"""A thread of rank 0 prepares what it sends to rank 1 while the main thread is at a barrier."""
# expect: state=ok exit=0

import threading
import time

import torch
import torch.distributed as dist


def publish(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10_000))
    dist.send(torch.ones(4), dst=1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for _ in range(2):
        if rank == 0:
            thread = threading.Thread(target=publish, args=(4,))
            thread.start()
        if rank == 1:
            dist.recv(torch.empty(4), src=0)
        dist.barrier()
        if rank == 0:
            thread.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
