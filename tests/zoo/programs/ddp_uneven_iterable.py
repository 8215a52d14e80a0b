"""DDP over an IterableDataset that is shorter on one rank.

That rank leaves its loop first: it waits in the barrier before the evaluation, or,
with --exit, ends with exit code 0, while the others are in the gradient all_reduce.
"""
# expect: state=hang kind=finished_early certainty=proved culprits=1 victims=0,2,3
# expect: group=default_pg site=culprit
# A rank that is slow to end keeps its connections: the others wait, before they fail of it.
# expect --exit: state=failed|hang kind=finished_early reason=exited certainty=proved culprits=1
# expect --exit: op=all_reduce group=default_pg exit=1

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


class Lines(IterableDataset):
    def __init__(self, rank):
        self.count = 40 if rank == 1 else 48

    def __iter__(self):
        for index in range(self.count):
            yield torch.full((16,), float(index)), torch.tensor([1.0])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for lines, labels in DataLoader(Lines(dist.get_rank()), batch_size=4):
        loss = torch.nn.functional.mse_loss(model(lines), labels)
        optimizer.zero_grad()
        loss.backward()  # victim
        optimizer.step()
    if "--exit" in sys.argv:
        return
    dist.barrier()  # culprit
    if dist.get_rank() == 0:
        print("training done, evaluating", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: uneven_loop at `for lines...` | uneven_loop at `self.count = 40 if...`
# cause --exit: uneven_loop at `for lines...` | uneven_loop at `self.count = 40 if...`
