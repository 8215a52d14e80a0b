"""The program trains in a thread, as Ray Train has it; on rank 1 that stays in its own code."""
# expect: state=hang kind=never_entered reason=user_code culprits=1 victims=0,2
# expect: op=all_reduce group=default_pg site=culprit
# launched with --nproc-per-node=3

import queue
import threading
import time

import torch
import torch.distributed as dist

results = queue.Queue()


def main():
    dist.init_process_group("gloo")
    threading.Thread(target=train, daemon=True).start()
    while results.get() is not None:
        pass
    dist.destroy_process_group()


def train():
    for step in range(20):
        dist.all_reduce(torch.ones(4))
        while step == 10 and dist.get_rank() == 1:
            time.sleep(1)  # culprit
        results.put(step)
    results.put(None)


if __name__ == "__main__":
    main()
