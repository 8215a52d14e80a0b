"""DDP training in which the DataLoader worker of one rank never delivers a batch.

The sample sits behind a file lock that nobody gives back, as on a stale network mount.
"""
# expect: state=hang kind=never_entered reason=data_loading culprits=2 victims=0,1,3
# expect: op=all_reduce group=default_pg site=culprit certainty=likely|possible

import fcntl
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BAD_SAMPLE = 24


class Images(Dataset):
    def __init__(self, rank, lock_path):
        self.rank = rank
        self.lock_path = lock_path

    def __len__(self):
        return 256

    def __getitem__(self, index):
        if self.rank == 2 and index == BAD_SAMPLE:
            with self.lock_path.open("w") as shard:
                fcntl.flock(shard, fcntl.LOCK_EX)  # culprit
        return torch.full((16,), float(index)), index % 4


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    lock_path = Path(tempfile.mkdtemp(), "shard.lock")
    held = lock_path.open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    loader = DataLoader(Images(rank, lock_path), batch_size=4, num_workers=1)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in loader:  # loop
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # victim
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `fcntl.flock(shard, fcntl.LOCK_EX)`
