"""One rank waits for a key in the store that nobody sets; the others are in all_reduce."""
# expect: state=hang kind=never_entered reason=store_wait culprits=2 victims=0,1,3
# expect: op=all_reduce group=default_pg site=culprit certainty=likely|possible

from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = dist.PrefixStore("train", dist.distributed_c10d._get_default_store())  # noqa: SLF001
    weights = torch.zeros(64)
    for step in range(40):
        gradient = torch.randn(64)
        if rank == 2 and step == 15:
            store.wait(["teacher-weights-ready"], timedelta(hours=1))  # culprit
        dist.all_reduce(gradient)  # victim
        weights -= 0.01 * gradient / dist.get_world_size()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `store.wait(["teacher-weights-ready"], timedelta(hours=1))`
