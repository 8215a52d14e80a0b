"""A rank takes so long that the time-out of the others' collective ends the job."""
# launched with --nproc-per-node=3
# expect: state=failed kind=never_entered culprits=1 victims=0,2 op=all_reduce exit=1
# expect: certainty=possible

import datetime as dt
import time

import torch
import torch.distributed as dist


def prepare(step):
    if dist.get_rank() == 1 and step == 12:
        time.sleep(60)


def main():
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=4))
    for step in range(30):
        prepare(step)
        dist.all_reduce(torch.ones(8))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `time.sleep(60)`
