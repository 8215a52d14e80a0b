"""A rank has a smaller shard, leaves the loop first, and counts what all have seen."""
# launched with --nproc-per-node=3
# watched with --suspect-after 12 --hang-after 16
# expect: state=hang kind=finished_early certainty=proved culprits=2 victims=0,1
# expect: group=default_pg site=culprit

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
    shard = list(range(480 if dist.get_rank() == 2 else 640))
    for start in range(0, len(shard), 16):
        inputs = torch.randn(len(shard[start : start + 16]), 64, device=device)
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seen = torch.tensor([float(len(shard))], device=device)
    dist.all_reduce(seen)  # culprit
    print("seen", seen.item())


if __name__ == "__main__":
    main()

# cause: uneven_loop at `for start in range(0, len(shard), 16):`
