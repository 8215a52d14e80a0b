"""The demo's training program: DDP on the CPU. It knows nothing of hangwatch."""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

STALLED_RANK = 2
STALLED_SAMPLE = 160
STEP_S = 0.02


class Samples:
    """Random vectors and their sums."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.rank == STALLED_RANK and index == STALLED_SAMPLE:
            time.sleep(60)  # such as a file on a network mount that does not answer
        sample = torch.rand(16, generator=torch.Generator().manual_seed(index))
        return sample, sample.sum(0, keepdim=True)


def main() -> None:
    """Train until the data ends, or no more comes."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Samples(rank), batch_size=4, num_workers=1)
    for step, (samples, sums) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(samples), sums)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(STEP_S)
        if rank == 0 and step % 10 == 0:
            print(f"step {step:3}  loss {loss.item():.4f}", flush=True)  # noqa: T201 (a script)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ["RANK"]))
    main()
