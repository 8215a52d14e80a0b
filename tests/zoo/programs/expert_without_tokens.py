"""Tokens go to experts and come back; a rank whose expert gets none leaves out the way back.

Its next exchange, of the counts, meets the others' exchange of tokens: gloo aborts whichever rank
is sent more than it expects.
"""
# expect: state=failed kind=op_mismatch certainty=proved culprits=2 victims=0,1,3

import torch
import torch.distributed as dist

STEPS = 12


def exchange(tokens, counts):
    expected = torch.empty_like(counts)
    dist.all_to_all_single(expected, counts)
    arrived = tokens.new_empty(int(expected.sum()), tokens.shape[1])
    dist.all_to_all_single(arrived, tokens, expected.tolist(), counts.tolist())
    return arrived, expected


def forward(tokens, counts):
    arrived, expected = exchange(tokens, counts)
    if not len(arrived):
        return tokens
    back = torch.empty_like(tokens)
    dist.all_to_all_single(back, arrived * 2, counts.tolist(), expected.tolist())
    return back


def main():
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    for step in range(STEPS):
        counts = torch.full((world,), 3)
        if step >= STEPS - 4:
            counts[2] = 0
        forward(torch.randn(int(counts.sum()), 16), counts)
    dist.barrier()
    dist.destroy_process_group()


main()

# cause: data_condition at `if not len(arrived):` | early_exit at `return tokens`
