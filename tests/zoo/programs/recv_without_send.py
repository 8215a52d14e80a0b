"""A pipeline stage waits for a micro-batch that the stage before it never sends."""
# expect: state=hang kind=missing_peer culprits=0 op=recv group=default_pg certainty=proved|likely

import torch
import torch.distributed as dist

MICRO_BATCHES = 4


def main():
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for step in range(20):
        micro_batches = MICRO_BATCHES
        if rank == 0 and step == 6:
            micro_batches -= 1  # an empty micro-batch was dropped on the first stage alone
        for _ in range(micro_batches):
            activation = torch.randn(8, 16)
            if rank > 0:
                dist.recv(activation, src=rank - 1)  # victim
            if rank < last:
                dist.send(activation.relu(), dst=rank + 1)
        gradient = torch.randn(64)
        dist.all_reduce(gradient)  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: uneven_loop at `for _ in range(micro_batches):` | uneven_loop at `micro_batches -= 1`
