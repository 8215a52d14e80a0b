"""Two pipelines, of which each later stage takes its rank in the group for the sender's."""
# expect: state=hang kind=missing_peer culprits=3 victims=0,1,2
# expect: op=send group=default_pg site=culprit

import torch
import torch.distributed as dist

MICROBATCHES = 10


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    chains = [[0, 2], [1, 3]]
    groups = [dist.new_group(chain) for chain in chains]
    stage = dist.get_rank(groups[rank % 2])
    weight = torch.ones(256, 256)
    for microbatch in range(MICROBATCHES):
        if stage == 0:
            dist.send(weight * microbatch, chains[rank % 2][1])
        else:
            received = torch.empty_like(weight)
            dist.recv(received, src=stage - 1)  # culprit
            weight = weight + received
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
