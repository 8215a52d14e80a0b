"""One rank builds its cache of samples before the first batch; the others wait for it."""
# watched with --suspect-after 3
# expect: state=slow kind=never_entered reason=data_loading culprits=2 victims=0,1,3
# expect: op=all_reduce group=default_pg site=slow exit=0

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Tokens(Dataset):
    def __init__(self, cached):
        self.cached = cached

    def __len__(self):
        return 160

    def __getitem__(self, index):
        if not self.cached:
            time.sleep(7)  # slow
            self.cached = True
        return torch.full((16,), float(index))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    loader = DataLoader(Tokens(cached=dist.get_rank() != 2), batch_size=8)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
    for samples in loader:
        loss = model(samples).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `time.sleep(7)`
