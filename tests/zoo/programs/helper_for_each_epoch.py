"""A trainer opens a world with a fresh helper for each epoch, in which it waits for a while."""
# expect: state=ok exit=0
# expect --stuck: state=hang kind=never_entered reason=user_code culprits=1 victims=0
# expect --stuck: op=broadcast group=default_pg site=culprit ranks=2
# The helper waits for the validation of the first epoch.
# expect --stuck: also=slow:0 certainty=likely|possible
# launched with --nproc-per-node=1

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

EPOCHS = 2
STEPS = 6
VALIDATION_S = 4.0 * float(os.environ.get("TEST_SLOWNESS", "1"))


def helper(port, steps, ready, *, stuck):
    ready.set()  # it has imported torch, which may take long
    open_world(1, port)
    for step in range(steps):
        while stuck and step == 3:
            time.sleep(1)  # culprit
        dist.broadcast(torch.zeros(2), 0)
        dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()


def main():
    for epoch in range(EPOCHS):
        port, steps = unused_port(), STEPS * (epoch + 1)
        stuck = epoch == EPOCHS - 1 and "--stuck" in sys.argv
        context = mp.get_context("spawn")
        ready = context.Event()
        process = context.Process(target=helper, args=(port, steps, ready), kwargs={"stuck": stuck})
        process.start()
        ready.wait()
        open_world(0, port)
        for step in range(steps):
            dist.broadcast(torch.ones(2), 0)
            if step == steps - 2:
                time.sleep(VALIDATION_S)
            dist.all_reduce(torch.ones(2))
        dist.destroy_process_group()
        process.join()


def open_world(rank, port):
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # this store is no launcher's
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)


def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    main()

# cause --stuck: stuck_line at `time.sleep(1)` | stuck_line at `while stuck and step == 3:`
