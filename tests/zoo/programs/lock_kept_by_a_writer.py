"""A thread keeps a lock while it writes to a pipe that nobody reads; the training loop wants it."""
# launched with --nproc-per-node=4
# expect: state=hang kind=never_entered culprits=3 victims=0,1,2
# expect: site=culprit certainty=likely

import os
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Metrics:
    """Rows that a thread hands to a process of the user's now and then."""

    def __init__(self, sink):
        self._lock = threading.Lock()
        self._rows = []
        self._sink = sink
        threading.Thread(target=self._flush, name="metrics", daemon=True).start()

    def add(self, row):
        with self._lock:  # culprit
            self._rows.append(row)

    def _flush(self):
        while True:
            time.sleep(0.05)
            with self._lock:
                if len(self._rows) >= 10:
                    os.write(self._sink, repr(self._rows).encode() * 1000)
                    self._rows.clear()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    unread, sink = os.pipe()
    metrics = Metrics(sink if rank == 3 else os.open(os.devnull, os.O_WRONLY))
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    for step in range(200):
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()  # victim
        metrics.add({"step": step, "loss": loss.item()})
        time.sleep(0.02)
    os.close(unread)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `os.write(self._sink, repr(self._rows).encode() * 1000)`
