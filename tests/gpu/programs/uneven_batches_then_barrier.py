"""One of two ranks has fewer batches: its barrier pairs with the other's gradients.

NCCL lets the rank go that brings less, so it comes to its end, and the other waits for ever.
"""
# launched with --nproc-per-node=2
# watched with --suspect-after 12 --hang-after 16
# expect: state=hang kind=op_mismatch certainty=possible culprits=0,1

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def batches(count, device):
    for _ in range(count):
        yield torch.randn(32, 64, device=device)


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 256).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs in batches(60 if dist.get_rank() == 0 else 40, device):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(loss.item())
    dist.barrier()
    print("saved")


if __name__ == "__main__":
    main()

# cause: uneven_loop at `for inputs in batches(60...` | uneven_loop at `for _ in range(count):`
