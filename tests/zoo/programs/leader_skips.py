"""Gradients are averaged in pairs, among their leaders, and sent back; one leader stops leading.

Its pair goes on by itself up to the next collective of all. Both leaders did alike until
then. A group of leaders was made for both: the one that no longer leads is at fault.
"""
# expect: state=hang kind=order_inversion certainty=likely culprits=2 victims=0,1,3

import torch
import torch.distributed as dist


def leads(rank, step):
    return rank == 0 or (rank == 2 and step < 7)


def average(gradient, step, pair, leaders):
    rank = dist.get_rank()
    first = rank - rank % 2
    dist.reduce(gradient, dst=first, group=pair)
    if leads(rank, step):
        dist.all_reduce(gradient, group=leaders)
    dist.broadcast(gradient, src=first, group=pair)
    return gradient / dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    pair, _ = dist.new_subgroups(group_size=2)
    leaders = dist.new_group([0, 2])
    weight = torch.zeros(8)
    for step in range(40):
        weight -= average(torch.randn(8), step, pair, leaders)
        if step % 20 == 19:
            dist.all_reduce(weight.norm())
    dist.barrier()
    dist.destroy_process_group()


main()

# cause: rank_condition at `if leads(rank, step):` | rank_condition at `return rank == 0 or...`
