"""One rank of a pair reduces its activations in another precision than its peer.

Of two nobody has a majority: what the other pair does at this line tells who it is.
"""
# expect: state=hang|failed kind=signature_mismatch culprits=1 victims=0,2,3|0
# expect: site=culprit certainty=likely text=float16

import torch
import torch.distributed as dist

PAIRS = ([0, 1], [2, 3])


def activations(rank):
    x = torch.randn(32, 16)
    if rank == 1:  # its card was thought to be short of memory
        x = x.half()
    return x


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group(pair) for pair in PAIRS]
    mine = groups[rank // 2]
    for _ in range(30):
        x = activations(rank)
        dist.all_reduce(x, group=mine)  # culprit
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: different_argument at `dist.all_reduce(x, group=mine)`
