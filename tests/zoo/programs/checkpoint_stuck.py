"""Rank 0 writes its checkpoint to a pipe that nobody reads, as to a hung upload."""
# expect: state=hang kind=never_entered reason=checkpoint_io culprits=0 victims=1,2,3
# expect: op=barrier group=default_pg site=culprit certainty=likely|possible

import os
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
    path = Path(tempfile.mkdtemp(), "checkpoint.pt")
    os.mkfifo(path)
    for step in range(1, 41):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 10:
            if rank == 0:
                torch.save(model.module.state_dict(), path)  # culprit
            dist.barrier()  # victim
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `torch.save(model.module.state_dict(), path)`
