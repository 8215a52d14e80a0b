"""One rank runs out of memory: in torch's allocator, or, with --numpy, in numpy's."""
# expect: state=failed kind=died reason=out_of_memory certainty=proved culprits=1
# expect: group=default_pg site=culprit exit=1
# expect --numpy: state=failed kind=died reason=out_of_memory certainty=proved culprits=1
# expect --numpy: group=default_pg site=culprit-numpy exit=1

import sys

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

TOO_MUCH = 1 << 47


def cache(count):
    if "--numpy" in sys.argv:
        return np.zeros(count)  # culprit-numpy
    return torch.zeros(count)  # culprit


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(40):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()  # victim
        optimizer.step()
        cache(TOO_MUCH if rank == 1 and step == 10 else 64)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: process_gone at `return torch.zeros(count)`
# cause --numpy: process_gone at `return np.zeros(count)`
