"""The program trains in a thread, as Ray Train has it; on rank 1 that stays in its own code."""
# expect: state=hang kind=never_entered reason=user_code culprits=1 victims=0,2
# expect: op=all_reduce group=default_pg site=culprit certainty=likely|possible
# With --ddp C++ makes the calls.
# expect --ddp: state=hang kind=never_entered reason=user_code culprits=1 victims=0,2
# expect --ddp: op=all_reduce group=default_pg site=culprit certainty=likely|possible
# launched with --nproc-per-node=3

import queue
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

results = queue.Queue()


def main():
    dist.init_process_group("gloo")
    threading.Thread(target=train, daemon=True).start()
    while results.get() is not None:
        pass
    dist.destroy_process_group()


def train():
    model = torch.nn.Linear(4, 1)
    if "--ddp" in sys.argv:
        model = DistributedDataParallel(model)
    for step in range(20):
        while step == 10 and dist.get_rank() == 1:
            time.sleep(1)  # culprit
        loss = model(torch.ones(4)).sum()
        loss.backward()
        if "--ddp" not in sys.argv:
            dist.all_reduce(model.weight.grad)
        results.put(loss.item())
    results.put(None)


if __name__ == "__main__":
    main()

# cause: stuck_line at `time.sleep(1)` | stuck_line at `while step == 10 and...`
# cause --ddp: stuck_line at `time.sleep(1)` | stuck_line at `while step == 10 and...`
