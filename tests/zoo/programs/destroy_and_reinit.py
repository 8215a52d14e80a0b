"""The default group is destroyed and made anew, as for a second stage of training."""
# expect: state=ok exit=0

import os
import time

import torch
import torch.distributed as dist


def stage(index, store, steps):
    # Each stage has keys of its own: gloo would find the addresses of the stage before.
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(f"stage-{index}", store),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    pair = None
    for members in ([0, 1], [2, 3]):
        group = dist.new_group(members, group_desc="pair")
        if dist.get_rank() in members:
            pair = group
    gradient = torch.randn(64)
    for _ in range(steps):
        dist.all_reduce(gradient, group=pair)
        dist.all_reduce(gradient)
    time.sleep(2)
    dist.barrier()
    dist.destroy_process_group()


def main():
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    for index, steps in enumerate((25, 10, 40)):
        stage(index, store, steps)


if __name__ == "__main__":
    main()
