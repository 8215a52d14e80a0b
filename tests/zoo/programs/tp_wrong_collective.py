"""In one tensor parallel pair a rank takes the sequence parallel path, its peer does not."""
# expect: state=hang kind=op_mismatch certainty=likely culprits=2 victims=0,1,3
# expect: members=2,3 site=culprit victim_site=victim

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def combine(partial, group, *, sequence_parallel):
    if sequence_parallel:
        shard = torch.empty(partial.shape[0] // group.size(), partial.shape[1])
        dist.reduce_scatter_tensor(shard, partial, group=group)  # culprit
        gathered = torch.empty_like(partial)
        dist.all_gather_into_tensor(gathered, shard, group=group)
        return gathered
    dist.all_reduce(partial, group=group)  # victim
    return partial


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh["dp"].get_group(), mesh["tp"].get_group()
    torch.manual_seed(dp.rank())
    weights = torch.randn(16, 16)
    for step in range(30):
        activation = torch.randn(8, 16)
        long_sequence = rank == 2 and step == 11  # a padded batch was measured wrongly
        hidden = combine(activation @ weights, tp, sequence_parallel=long_sequence)
        gradient = activation.t() @ hidden
        dist.all_reduce(gradient, group=dp)
        weights -= 1e-4 * gradient
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: data_condition at `if sequence_parallel:` | rank_condition at `if sequence_parallel:`
