"""A thread that prefetches meets a broken record and ends: its rank waits for the queue."""
# launched with --nproc-per-node=3
# expect: state=hang kind=never_entered culprits=1 victims=0,2
# expect: site=culprit certainty=likely

import queue
import threading

import torch
import torch.distributed as dist


class Prefetcher:
    """Reads ahead in a thread of its own."""

    def __init__(self, records):
        self._ready = queue.Queue(maxsize=4)
        self._records = records
        threading.Thread(target=self._fill, name="prefetcher", daemon=True).start()

    def _fill(self):
        for record in self._records:
            self._ready.put(record["picture"] / 255)
        self._ready.put(None)

    def __iter__(self):
        while (picture := self._ready.get()) is not None:  # culprit
            yield picture


def records(rank):
    for number in range(60):
        yield {"picture": torch.randn(16)} if (rank, number) != (1, 23) else {"caption": "?"}


def main():
    dist.init_process_group("gloo")
    weights = torch.zeros(16)
    for picture in Prefetcher(records(dist.get_rank())):
        gradient = picture - weights
        dist.all_reduce(gradient)  # victim
        weights += 0.1 * gradient
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `self._ready.put(record["picture"] / 255)`
