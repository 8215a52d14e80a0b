"""Rank 0 has a timer answer for it, and waits for rank 1, which waits for the answer."""
# expect: state=ok exit=0
# launched with --nproc-per-node=2

import threading

import torch
import torch.distributed as dist

ROUNDS = 2
LATER_S = 4.0


def main():
    dist.init_process_group("gloo")
    task, answer = torch.ones(2), torch.zeros(2)
    for _ in range(ROUNDS):
        if dist.get_rank() == 0:
            timer = threading.Timer(LATER_S, dist.send, (task, 1))
            timer.start()
            dist.recv(answer, 1)
            timer.join()
        else:
            dist.recv(task, 0)
            dist.send(task * 2, 0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
