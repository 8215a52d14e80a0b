"""A data-dependent if/else takes one rank into another collective than its peers."""
# expect: state=hang kind=op_mismatch certainty=proved culprits=1 victims=0,2,3
# expect: op=broadcast group=default_pg site=culprit

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    weights = torch.zeros(64)
    for step in range(40):
        gradient = torch.rand(64)
        if rank == 1 and step == 15:
            gradient[0] = 1e6
        if gradient.norm() > 1e3:
            dist.broadcast(weights, src=0)  # culprit
        else:
            dist.all_reduce(gradient)  # victim
        weights -= 0.01 * gradient / dist.get_world_size()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: data_condition at `if gradient.norm() > 1e3:`
