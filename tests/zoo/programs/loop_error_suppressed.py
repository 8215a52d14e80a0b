"""An error that one rank passes over takes it out of its loop, and to a barrier."""
# launched with --nproc-per-node=3
# expect: state=hang kind=finished_early reason=user_code certainty=proved culprits=1 victims=0,2
# expect: site=culprit

import contextlib

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rows = [str(number) for number in range(200)]
    if dist.get_rank() == 1:
        rows[30] = "n/a"
    with contextlib.suppress(ValueError):
        for row in rows:
            dist.all_reduce(torch.ones(8) * int(row))
    dist.barrier()  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: swallowed_exception at `with contextlib.suppress(ValueError):`
