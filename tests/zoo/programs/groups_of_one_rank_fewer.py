"""A spare rank leaves out the groups of the replicas, so the next group has another name on it.

That group is for all: the others wait in it, each below its own name, and in groups that the
spare rank is a member of.
"""
# expect: state=hang kind=init_incomplete culprits=2 victims=0,1,3
# expect: site=culprit victim_site=victim certainty=likely text=new_group

import torch
import torch.distributed as dist

SHARDS = ([0, 1], [2, 3])
REPLICAS = ([0, 2], [1, 3])
SPARE = 2


def group_of(rank, several):
    """Each rank makes all groups, and keeps its own."""
    groups = [dist.new_group(ranks) for ranks in several]  # victim
    return next(group for group, ranks in zip(groups, several, strict=True) if rank in ranks)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    shard = group_of(rank, SHARDS)
    replicas = None
    if rank != SPARE:  # it took no part in the gradients of the last job
        replicas = group_of(rank, REPLICAS)
    control = dist.new_group()  # culprit
    weights = torch.randn(64)
    for _ in range(30):
        dist.all_reduce(weights, group=shard)
        if replicas is not None:
            dist.all_reduce(weights, group=replicas)
        dist.barrier(group=control)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: rank_condition at `if rank != SPARE:`
