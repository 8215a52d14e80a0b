"""Ranks 0 and 1 alone call torch.distributed.checkpoint.save, a collective of all ranks."""
# expect: state=hang kind=subset_entered culprits=0,1 victims=2,3
# expect: group=default_pg site=culprit certainty=likely|possible

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    path = Path(tempfile.gettempdir(), "checkpoint")
    for step in range(1, 31):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 10 and rank < 2:  # those with a disk
            dcp.save(model.module.state_dict(), checkpoint_id=path)  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: rank_condition at `if step == 10 and rank < 2:`
