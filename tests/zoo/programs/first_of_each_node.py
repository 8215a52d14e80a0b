"""The first rank of each node takes itself for the one that collects, and there are two nodes."""
# expect: state=hang kind=missing_peer certainty=possible culprits=0,2 op=recv site=culprit

import torch
import torch.distributed as dist

RANKS_OF_A_NODE = 2


class Place:
    def __init__(self):
        self.rank = dist.get_rank()
        self.local_rank = self.rank % RANKS_OF_A_NODE
        self.is_leader = self.local_rank == 0


def collect(place, counts):
    """Sum up the counts of all ranks on the first one."""
    if place.is_leader:
        other = torch.empty_like(counts)
        for source in range(dist.get_world_size()):
            if source != place.rank:
                dist.recv(other, source)  # culprit
                counts += other
    else:
        dist.send(counts, 0)
    return counts


def main():
    dist.init_process_group("gloo")
    place = Place()
    for step in range(40):
        gradient = torch.ones(16)
        dist.all_reduce(gradient)
        if step % 25 == 24:
            collect(place, torch.ones(4))


if __name__ == "__main__":
    main()

# cause: rank_condition at `if place.is_leader:`
