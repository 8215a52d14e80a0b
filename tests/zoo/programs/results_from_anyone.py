"""The first rank collects results from whoever has one, and the count is not right."""
# expect: state=hang kind=missing_peer certainty=likely culprits=2 op=recv site=culprit
# expect --one-more: state=hang kind=missing_peer certainty=likely|proved culprits=0 op=recv
# expect --one-more: site=victim
# expect --wait-for-the-gone: state=hang kind=finished_early certainty=likely culprits=0
# expect --wait-for-the-gone: op=recv site=waits

import sys

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(120):
        result = torch.full((4,), float(step))
        if rank == 0:
            for _ in range(ranks if "--one-more" in sys.argv and step == 99 else ranks - 1):
                dist.recv(result)  # victim
        elif rank != 2 or step != 99 or len(sys.argv) > 1:
            dist.send(result, dst=0)
        dist.barrier()  # culprit
    if rank == 0 and "--wait-for-the-gone" in sys.argv:
        dist.recv(torch.empty(4))  # waits


if __name__ == "__main__":
    main()

# cause: rank_condition at `elif rank != 2 or...` | unmatched_p2p at `elif rank != 2 or...`
# cause --one-more: unmatched_p2p at `dist.recv(result)` | uneven_loop at `for _ in range...`
# cause --wait-for-the-gone: unmatched_p2p at `dist.recv(torch.empty(4))`
