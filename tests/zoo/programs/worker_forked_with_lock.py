"""A data worker is forked while a thread of its parent holds a lock, and never gets it."""
# expect: state=hang kind=never_entered reason=data_loading culprits=1 victims=0,2,3
# expect: op=all_reduce group=default_pg site=culprit certainty=likely|possible

import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

cache_lock = threading.Lock()


class Cached(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        with cache_lock:  # culprit
            return torch.full((16,), float(index))


def write_cache(held):
    """As a thread that flushes a cache does every now and then."""
    with cache_lock:
        held.set()
        time.sleep(3)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
    for epoch in range(3):
        loader = DataLoader(Cached(), batch_size=8, num_workers=1, multiprocessing_context="fork")
        if rank == 1 and epoch == 1:
            held = threading.Event()
            threading.Thread(target=write_cache, args=(held,)).start()
            held.wait()
        for samples in loader:
            loss = model(samples).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `with cache_lock:` (21)
