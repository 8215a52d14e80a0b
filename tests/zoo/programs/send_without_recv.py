"""A pipeline stage sends one micro-batch more than the next stage receives."""
# expect: state=hang kind=missing_peer culprits=0 op=send group=default_pg certainty=proved|likely
# expect: victims=1,2,3 site=culprit victim_site=victim

import torch
import torch.distributed as dist

MICRO_BATCHES = 4


def main():
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for step in range(20):
        micro_batches = MICRO_BATCHES
        if rank == 0 and step == 6:
            micro_batches += 1  # the last batch of the epoch was split differently
        for _ in range(micro_batches):
            activation = torch.randn(8, 16)
            if rank > 0:
                dist.recv(activation, src=rank - 1)
            if rank < last:
                dist.send(activation.relu(), dst=rank + 1)  # culprit
        gradient = torch.randn(64)
        dist.all_reduce(gradient)  # victim
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: uneven_loop at `for _ in range(micro_batches):` | uneven_loop at `micro_batches += 1`
