"""A rank runs out of memory in the middle of a step, and goes on with the next batch."""
# launched with --nproc-per-node=3
# watched with --suspect-after 12 --hang-after 16
# expect: state=hang certainty=proved|likely culprits=1

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 256).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(60):
        size = 1 << 40 if step == 33 and dist.get_rank() == 1 else 32
        try:
            loss = model(torch.randn(size, 64, device=device)).square().mean()
            loss.backward()
        except torch.cuda.OutOfMemoryError:
            optimizer.zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()
        print(step, loss.item())


if __name__ == "__main__":
    main()

# cause: swallowed_exception at `except torch.cuda.OutOfMemoryError:`
