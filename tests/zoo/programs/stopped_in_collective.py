"""All ranks are in the same all_reduce, and one of them is stopped there by SIGSTOP."""
# expect: state=hang kind=collective_stuck reason=stopped culprits=1 victims=0,2,3
# expect: op=all_reduce group=default_pg site=culprit certainty=likely|possible

import os
import signal
import threading
import time

import torch
import torch.distributed as dist


def stop_soon():
    """As a container that is frozen at any time."""
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGSTOP)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gradient = torch.randn(64)
    for step in range(60):
        if step == 25:
            if rank == 1:
                threading.Thread(target=stop_soon, daemon=True).start()
            elif rank == 3:
                time.sleep(2)
        dist.all_reduce(gradient)  # culprit
        gradient /= dist.get_world_size()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `dist.all_reduce(gradient)` | stuck_line at `os.kill(os.getpid()...`
