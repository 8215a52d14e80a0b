"""Counts are exchanged before padding is dropped, so a rank has nothing to send to another one.

It leaves out the message that the other waits for.
"""
# launched with --nproc-per-node=3
# expect: state=hang kind=missing_peer certainty=likely culprits=2 victims=0,1 op=irecv|recv
# expect: site=culprit victim_site=victim

import torch
import torch.distributed as dist


def route(tokens, owner, padding):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    counts = torch.bincount(owner, minlength=ranks)
    table = [torch.empty_like(counts) for _ in range(ranks)]
    dist.all_gather(table, counts)
    tokens, owner = tokens[~padding], owner[~padding]
    works, kept = [], []
    for peer in range(ranks):
        if peer == rank:
            continue
        mine = tokens[owner == peer].contiguous()
        if mine.numel():
            kept.append(mine)
            works.append(dist.isend(mine, peer))
        expected = int(table[peer][rank])
        if expected:
            taken = torch.empty(expected, tokens.shape[1])
            works.append(dist.irecv(taken, peer))  # victim
    for work in works:
        work.wait()


def batch(step):
    tokens = torch.randn(12, 4)
    owner = torch.arange(12) % dist.get_world_size()
    padding = torch.zeros(12, dtype=torch.bool)
    if step >= 30 and dist.get_rank() == 2:
        padding[owner == 0] = True
    return tokens, owner, padding


def main():
    dist.init_process_group("gloo")
    for step in range(60):
        route(*batch(step))
        dist.all_reduce(torch.ones(1))  # culprit


if __name__ == "__main__":
    main()

# cause: data_condition at `if mine.numel():`
