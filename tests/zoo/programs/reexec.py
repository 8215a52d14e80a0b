"""The script starts itself anew to change its environment; later one rank is stuck."""
# expect: state=hang kind=never_entered reason=user_code culprits=1 op=all_reduce
# expect: group=default_pg site=culprit victim_site=victim certainty=likely|possible

import os
import sys
import time

import torch
import torch.distributed as dist


def again():
    """As scripts do for variables that are read when a process starts."""
    if "STARTED_ANEW" not in os.environ:
        time.sleep(1.5)
        os.environ["STARTED_ANEW"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606 (no shell is meant)


def main():
    again()
    dist.init_process_group("gloo")
    for step in range(50):
        if dist.get_rank() == 1 and step == 20:
            time.sleep(3600)  # culprit
        dist.all_reduce(torch.ones(4))  # victim
        time.sleep(0.05)


if __name__ == "__main__":
    main()

# cause: stuck_line at `time.sleep(3600)`
