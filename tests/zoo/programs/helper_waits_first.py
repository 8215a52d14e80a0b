"""Ranks 0 and 1 wait for each other until a thread of rank 0 has got what it waits for itself."""
# expect: state=ok exit=0
# launched with --nproc-per-node=3

import threading
import time

import torch
import torch.distributed as dist

ROUNDS = 2
LOADING_S = 4.0


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    first, second, third = dist.new_group([0, 1]), dist.new_group([0, 1]), dist.new_group([0, 2])
    for _ in range(ROUNDS):
        if rank == 0:
            helper = threading.Thread(target=reduce_in_turn, args=(third, second))
            helper.start()
            time.sleep(0.2)
            reduce_in_turn(first)
            helper.join()
        elif rank == 1:
            reduce_in_turn(second, first)
        else:
            time.sleep(LOADING_S)
            reduce_in_turn(third)
    dist.barrier()
    dist.destroy_process_group()


def reduce_in_turn(*groups):
    for group in groups:
        dist.all_reduce(torch.ones(2), group=group)


if __name__ == "__main__":
    main()
