"""One rank of a 2 x 2 mesh reduces over dp before tp: the groups meet once, so all is well."""
# expect: state=ok exit=0

import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    groups = [mesh["tp"].get_group(), mesh["dp"].get_group()]
    tensors = [torch.randn(32), torch.randn(32)]
    order = [1, 0] if dist.get_rank() == 3 else [0, 1]
    for step in range(6):
        if step % 4 == dist.get_rank():
            time.sleep(1.2)
        for index in order:
            dist.all_reduce(tensors[index], group=groups[index])
            tensors[index] /= 2
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
