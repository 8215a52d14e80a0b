"""A tensor sharded over all ranks is redistributed and printed, by all ranks alike."""
# expect: state=ok exit=0
# With --first-rank only rank 0 asks for the whole of it, to print it.
# expect --first-rank: state=hang kind=subset_entered culprits=0 victims=1,2,3
# expect --first-rank: site=culprit victim_site=victim certainty=proved|likely

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("rows",))
    torch.manual_seed(0)
    weights = distribute_tensor(torch.randn(64, 8), mesh, [Shard(0)])
    for step in range(1, 21):
        inputs = torch.randn(8, 4)
        product = weights @ distribute_tensor(inputs, mesh, [Replicate()])  # victim
        columns = product.redistribute(mesh, [Shard(1)])
        norm = columns.to_local().norm().reshape(1)
        dist.all_reduce(norm)
        if step == 10 and ("--first-rank" not in sys.argv or rank == 0):
            print(rank, weights.full_tensor().sum())  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause --first-rank: rank_condition at `if step == 10 and ("--first-rank" not in sys.argv...`
