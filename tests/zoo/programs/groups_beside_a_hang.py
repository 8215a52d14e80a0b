"""A thread goes on making and destroying groups of its own while backward waits for a peer."""
# expect: state=hang kind=never_entered reason=user_code culprits=1 victims=0
# expect: op=all_reduce group=default_pg site=culprit certainty=likely|possible
# launched with --nproc-per-node=2

import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(10, 10))
    threading.Thread(target=make_groups, daemon=True).start()
    for step in range(20):
        loss = model(torch.randn(4, 10)).sum()
        while step == 10 and dist.get_rank() == 1:
            time.sleep(1)  # culprit
        loss.backward()
    dist.destroy_process_group()


def make_groups():
    while dist.is_initialized():
        group = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        time.sleep(0.2)
        dist.destroy_process_group(group)


if __name__ == "__main__":
    main()

# cause: stuck_line at `time.sleep(1)` | stuck_line at `while step == 10 and dist.get_rank() == 1:`
