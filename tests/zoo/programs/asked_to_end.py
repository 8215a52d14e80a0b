"""A rank fails; another one, busy, raises in its handler of the SIGTERM that follows from it."""
# launched with --nproc-per-node=3
# expect: state=failed kind=died reason=exception certainty=proved culprits=2 victims=0
# expect: site=culprit op=all_reduce exit=1 text=KeyError

import signal
import time

import torch
import torch.distributed as dist


class PreemptedError(Exception):
    pass


def leave(*_):
    raise PreemptedError("asked to stop")


def main():
    signal.signal(signal.SIGTERM, leave)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for _ in range(30):
        dist.all_reduce(torch.ones(8))
    if rank == 2:
        time.sleep(2)
        print({}["label"])  # culprit
    if rank == 1:
        time.sleep(60)
    dist.all_reduce(torch.ones(8))


if __name__ == "__main__":
    main()

# cause: process_gone at `print({}["label"])`
