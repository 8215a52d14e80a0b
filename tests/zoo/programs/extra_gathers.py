"""A rank looks at a sharded weight by itself: each look is a collective of the tensor group."""
# expect: state=failed kind=finished_early culprits=0 site=culprit certainty=proved|likely

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def log_norm(weight):
    return weight.redistribute(placements=[Replicate()]).to_local().norm()


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    weight = distribute_tensor(torch.randn(16, 8), mesh, [Shard(0)])
    for step in range(40):
        (weight * 2).redistribute(placements=[Replicate()]).to_local().sum()  # culprit
        if step % 10 == 9 and dist.get_rank() == 0:
            print("norm", log_norm(weight))


if __name__ == "__main__":
    main()

# cause: rank_condition at `if step % 10 == 9 and dist.get_rank() == 0:`
