"""A compiled step with a functional all_reduce that one rank skips once.

The first argument is torch.compile's backend.
"""
# expect aot_eager: state=hang kind=op_mismatch certainty=proved culprits=3 victims=0,1,2
# expect aot_eager: group=default_pg site=culprit
# expect inductor: state=hang kind=op_mismatch certainty=proved culprits=3 victims=0,1,2
# expect inductor: group=default_pg site=culprit

import sys

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional


def step(batch, weights):
    loss = (batch @ weights).square().mean()
    return functional.all_reduce(loss, "avg", dist.group.WORLD) * 2.0


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    compiled = torch.compile(step, fullgraph=True, backend=sys.argv[1])
    weights = torch.randn(16, 4)
    for index in range(30):
        batch = torch.randn(8, 16)
        if rank == 3 and index == 12:
            batch[0] = float("nan")
        if not batch.isnan().any():  # a rank decides alone to leave the step out
            loss = compiled(batch, weights)  # victim
            weights -= 0.01 * float(loss)
        dist.broadcast(weights, src=0)  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause aot_eager: data_condition at `if not batch.isnan().any():`
# cause inductor: data_condition at `if not batch.isnan().any():`
