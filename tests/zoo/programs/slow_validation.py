"""Rank 0 validates alone while the others wait in a barrier, twice; that takes a while."""
# watched with --suspect-after 3
# expect: state=slow kind=never_entered reason=user_code culprits=0 victims=1,2,3
# expect: op=barrier group=default_pg function=validate exit=0

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def validate(model, seconds):
    end = time.monotonic() + seconds
    worst = 0.0
    while time.monotonic() < end:
        with torch.no_grad():
            worst = max(worst, float(model(torch.randn(64, 16)).abs().max()))
        time.sleep(0.01)
    return worst


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 41):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            if dist.get_rank() == 0:
                validate(model.module, 6 if step == 20 else 2)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `while time.monotonic() < end:` | stuck_line at `time.sleep(0.01)`
