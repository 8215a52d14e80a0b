"""One rank decides alone to stop early: its metric meets the others' gradients.

torchrun leaves the others some seconds, in which what C++ did in them can be read.
"""
# launched with --monitor-interval=3
# expect: state=failed kind=finished_early lost=signature_mismatch culprits=1
# expect: op=all_reduce group=default_pg site=culprit certainty=proved|likely

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def converged(rank, epoch):
    return rank == 1 and epoch == 3


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    layers = torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(8):
        for _ in range(5):
            loss = model(torch.randn(8, 32)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if converged(rank, epoch):
            break
    total = loss.detach().clone()
    dist.all_reduce(total)  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: early_exit at `break` | data_condition at `if conv...` | rank_condition at `if conv...`
