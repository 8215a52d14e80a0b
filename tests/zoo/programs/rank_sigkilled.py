"""One rank is killed by SIGKILL in the middle of a step, as by the kernel's OOM killer."""
# expect: state=failed kind=died reason=signal certainty=proved culprits=2
# expect: op=all_reduce group=default_pg victim_site=victim exit=1 text=SIGKILL

import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(40):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 2 and step == 10:
            os.kill(os.getpid(), signal.SIGKILL)  # culprit
        dist.all_reduce(loss.detach())  # victim
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: process_gone at `os.kill(os.getpid(), signal.SIGKILL)` | process_gone
