"""A 2 x 2 mesh, every pair of ranks, and groups that only some ranks belong to."""
# expect: state=ok exit=0

import itertools
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    pairs = []
    for members in itertools.combinations(range(world_size), 2):
        group = dist.new_group(list(members), group_desc=f"pair-{members}")
        if rank in members:
            pairs.append(group)
    if rank < 3:
        few = dist.new_group([0, 1, 2], use_local_synchronization=True)
    value = torch.ones(8)
    for step in range(40):
        dist.all_reduce(value, group=mesh["tensor"].get_group())
        dist.all_reduce(value, group=mesh["data"].get_group())
        if step % 5 == rank:
            time.sleep(0.3)
        for group in pairs:
            dist.barrier(group=group)
        if rank < 3:
            dist.broadcast(value, src=1, group=few)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
