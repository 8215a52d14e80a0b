"""A rank has fewer batches, taken by `next()` in an endless loop, and goes on to a barrier."""
# expect: state=hang kind=finished_early reason=user_code certainty=proved culprits=1 victims=0,2,3
# expect: site=culprit

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    batches = iter([torch.ones(8)] * (30 if dist.get_rank() == 1 else 200))
    try:
        while True:
            dist.all_reduce(next(batches))
    except StopIteration:
        dist.barrier()  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: uneven_loop at `while True:` | uneven_loop at `batches = iter([torch.ones(8)] * (30...`
