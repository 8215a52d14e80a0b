"""An exception takes a rank out of its loop and into a barrier in `finally`; the others go on."""
# launched with --nproc-per-node=3
# expect: state=hang kind=finished_early reason=user_code culprits=2 victims=0,1
# expect: site=culprit certainty=proved

import torch
import torch.distributed as dist


def load(step):
    if step == 30 and dist.get_rank() == 2:
        raise OSError("no such shard")
    return torch.ones(8)


def main():
    dist.init_process_group("gloo")
    step = 0
    try:
        while step < 100:
            dist.all_reduce(load(step))
            step += 1
    finally:
        dist.barrier()  # culprit
        print("steps:", step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: swallowed_exception at `finally:` | process_gone at `raise OSError("no such shard")`
