"""A rank's data server drops it, and its fallback has a bug; the others wrap what c10d raises."""
# launched with --nproc-per-node=3
# expect: state=failed kind=died reason=exception culprits=2 victims=0,1 exit=1
# expect: site=culprit certainty=proved

import torch
import torch.distributed as dist


def fetch(batch):
    if batch == 50 and dist.get_rank() == 2:
        raise ConnectionError("data server: remote worker 7 closed the stream")
    return torch.ones(8)


def main():
    dist.init_process_group("gloo")
    cache = {}
    for batch in range(100):
        try:
            data = fetch(batch)
        except ConnectionError:
            data = cache[f"row-{batch}"]  # culprit
        failed = False
        try:
            dist.all_reduce(data)
        except RuntimeError:
            failed = True
        if failed:
            raise ValueError("training step failed")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: process_gone at `data = cache[f"row-{batch}"]`
