"""A substitute takes the place of rank 2 for one phase; then the old one is back, and waits."""
# expect: state=ok exit=0
# launched with --nproc-per-node=3

import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

STEPS = (12, 20, 6)
AWAY = 1
EVALUATION_S = 4.0


def main():
    rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
    for phase in range(len(STEPS)):
        if phase == AWAY and rank == 2:
            substitute = mp.get_context("spawn").Process(target=train, args=(rank, port, phase))
            substitute.start()
            substitute.join()
        else:
            train(rank, port, phase)


def train(rank, port, phase):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    # Each phase has keys of its own: gloo would find the addresses of the phase before.
    store = dist.PrefixStore(f"phase-{phase}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
    for _ in range(STEPS[phase]):
        dist.all_reduce(torch.ones(8))
    if rank == 0:
        time.sleep(EVALUATION_S)
    dist.broadcast_object_list([None], src=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
