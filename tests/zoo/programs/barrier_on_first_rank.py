"""Rank 0 saves the best model and calls dist.barrier() in the same `if`."""
# expect: state=hang kind=subset_entered certainty=proved culprits=0 victims=1,2,3
# expect: op=barrier group=default_pg site=culprit text=`if

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    path = Path(tempfile.mkdtemp(), "best.pt")
    for step in range(1, 41):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()  # victim
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            torch.save(model.module.state_dict(), path)
            dist.barrier()  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: rank_condition at `if rank == 0 and step % 20 == 0:`
