"""Ranks open one world after the other, which does not wait for the others, as on NCCL."""
# expect: state=ok exit=0
# launched with --nproc-per-node=2

import os
import time

import torch
import torch.distributed as dist

LOADING_S = 4.0


def main():
    os.environ["TORCH_GLOO_LAZY_INIT"] = "1"
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    for phase in range(2):
        if phase and rank == 1:
            time.sleep(LOADING_S)
        store = dist.PrefixStore(f"phase{phase}", dist.TCPStore(address, port, is_master=False))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        dist.all_reduce(torch.ones(2))
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
