"""Tokens for experts: rank 2 makes room for those of the step before; --one: of rank 0 alone."""
# expect: state=failed|hang kind=signature_mismatch culprits=2 certainty=likely
# expect: op=all_to_all_single group=default_pg site=exchange advice=output_split_sizes
# expect --one: state=failed|hang kind=signature_mismatch culprits=0,2 certainty=possible
# expect --one: op=all_to_all_single group=default_pg site=exchange advice=output_split_sizes

import sys

import torch
import torch.distributed as dist

WIDTH = 8


def route(step, rank, world_size):
    """How many tokens go to each rank: from one to three."""
    return torch.tensor([(rank + other + step) % 3 + 1 for other in range(world_size)])


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    before = None
    for step in range(1, 41):
        to = route(step, rank, world_size)
        room = torch.empty_like(to)
        dist.all_to_all_single(room, to)
        if step == 20 and rank == 2:
            late = [0] if "--one" in sys.argv else [0, 1, 3]
            room[late] = before[late]
        before = room.clone()
        tokens = torch.full((int(to.sum()), WIDTH), float(rank))
        received = torch.empty(int(room.sum()), WIDTH)
        dist.all_to_all_single(received, tokens, room.tolist(), to.tolist())  # exchange
        mean = received.mean()
        dist.all_reduce(mean)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: different_argument at `dist.all_to_...` (34) | different_argument at `room[late]...`
# cause --one: different_argument at `dist.all_to_...` (34) | different_argument at `room[late]...`
