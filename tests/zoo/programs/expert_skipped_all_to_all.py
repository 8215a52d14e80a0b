"""Experts in pairs: a rank to which no token was routed leaves the exchange out."""
# expect: state=hang kind=op_mismatch certainty=likely culprits=1 victims=0,2,3
# expect: site=culprit

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def exchange(tokens, group):
    received = torch.empty_like(tokens)
    dist.all_to_all_single(received, tokens, group=group)  # victim
    return received


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    dp, ep = mesh["dp"].get_group(), mesh["ep"].get_group()
    torch.manual_seed(rank)
    router, expert = torch.randn(8, 2), torch.randn(8, 8)
    for step in range(30):
        tokens = torch.randn(16, 8)
        routed = (tokens @ router).argmax(dim=1)
        if rank == 1 and step == 9:
            routed.zero_()
        if routed.any():
            hidden = exchange(tokens, ep) @ expert
            tokens = exchange(hidden, ep)
        gradient = tokens.t() @ tokens
        dist.all_reduce(gradient, group=dp)
        load = torch.tensor([float(routed.sum())])
        dist.all_reduce(load, group=ep)  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: data_condition at `if routed.any():`
