"""Gradient accumulation in which one rank stays in no_sync for the step that should sync."""
# expect: state=hang kind=op_mismatch certainty=proved culprits=1 victims=0,2,3
# expect: op=all_gather_into_tensor group=default_pg site=culprit

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE = 4


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    micro_step = 0
    for batch in range(48):
        if rank == 1 and batch == 22:
            continue  # an empty batch, which is not counted
        micro_step += 1
        last = micro_step % ACCUMULATE == 0
        with nullcontext() if last else model.no_sync():
            loss = model(torch.randn(8, 32)).square().mean()
            (loss / ACCUMULATE).backward()
        if (batch + 1) % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
            losses = torch.empty(world_size)
            dist.all_gather_into_tensor(losses, loss.detach().reshape(1))  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: no_sync at `with nullcontext() if last...` | skipped_iteration at `continue`
