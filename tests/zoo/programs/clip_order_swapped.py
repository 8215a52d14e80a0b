"""One rank sums the norm over all ranks before its tensor parallel all_reduce, not after.

The tensor parallel peer of that rank waits for it there, and it waits for the peer in the
norm of all ranks, where the other pair waits too.
"""
# expect: state=hang kind=order_inversion certainty=proved culprits=3 victims=0,1,2
# expect: site=culprit

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def tensor_parallel_step(activation, weights, group):
    hidden = activation @ weights
    dist.all_reduce(hidden, group=group)  # victim
    return hidden


def clip(gradient):
    norm = gradient.square().sum()
    dist.all_reduce(norm)  # culprit
    return gradient / max(1.0, float(norm.sqrt()))


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tp, dp = mesh["tp"].get_group(), mesh["dp"].get_group()
    torch.manual_seed(dp.rank())
    weights, gradient = torch.randn(8, 8), torch.randn(8, 8)
    for step in range(30):
        activation = torch.randn(4, 8)
        overflow = dist.get_rank() == 3 and step == 14
        if overflow:  # clips at once, before the step
            gradient = clip(gradient)
        hidden = tensor_parallel_step(activation, weights, tp)
        gradient = activation.t() @ hidden
        dist.all_reduce(gradient, group=dp)
        if not overflow:
            gradient = clip(gradient)
        weights -= 1e-3 * gradient
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: different_order at `if overflow:` | different_order at `gradient = clip(gradient)` (36)
