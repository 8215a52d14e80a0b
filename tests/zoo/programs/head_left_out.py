"""A model skips a head where a batch has no labels for it, which happens on one rank.

Its parameters get no gradient there, so that DistributedDataParallel does not reduce their bucket.
"""
# launched with --nproc-per-node=3
# expect: state=hang kind=op_mismatch culprits=2 victims=0,1
# expect: site=culprit certainty=proved

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Detector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(16, 16)
        self.classes = torch.nn.Linear(16, 4)
        self.masks = torch.nn.Linear(16, 64)

    def forward(self, pictures, masks):
        features = self.body(pictures).relu()
        loss = self.classes(features).square().mean()
        if masks is not None:
            loss = loss + (self.masks(features) - masks).square().mean()
        return loss


def batch(rank, step):
    labelled = (rank, step) != (2, 19)
    return torch.randn(4, 16), torch.randn(4, 64) if labelled else None


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(Detector())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(40):
        loss = model(*batch(rank, step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9:
            dist.barrier()  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: unused_parameter at `if masks is not None:`
