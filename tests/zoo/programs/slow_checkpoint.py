"""Rank 0 writes a checkpoint for 8 s while the others wait in a barrier; then it goes on."""
# watched with --suspect-after 3
# expect: state=slow kind=never_entered reason=checkpoint_io culprits=0 victims=1,2,3
# expect: op=barrier site=slow exit=0

import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class SlowDisk:
    def __init__(self, file, seconds):
        self.file = file
        self.seconds = seconds

    def write(self, data):
        time.sleep(self.seconds)  # slow
        self.seconds = 0
        return self.file.write(data)

    def flush(self):
        self.file.flush()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 61):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 30:
            if dist.get_rank() == 0:
                with Path(tempfile.mkdtemp(), "checkpoint.pt").open("wb") as file:
                    torch.save(model.module.state_dict(), SlowDisk(file, 8))
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `time.sleep(self.seconds)`
