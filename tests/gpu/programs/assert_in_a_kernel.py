"""An index out of range fails in a kernel of one rank, and PyTorch's watchdog of NCCL aborts it."""
# launched with --nproc-per-node=3
# watched with --suspect-after 12 --hang-after 16
# expect: state=failed kind=died reason=signal|exception certainty=proved|likely culprits=1

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    table = nn.Embedding(100, 64).to(device)
    model = DistributedDataParallel(nn.Linear(64, 256).to(device))
    for step in range(100):
        words = torch.randint(0, 100, (32,), device=device)
        if step == 50 and dist.get_rank() == 1:
            words[5] = 4000
        model(table(words)).sum().backward()
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
