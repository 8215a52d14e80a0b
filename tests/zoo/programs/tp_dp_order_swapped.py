"""Two ranks of a 2 x 2 mesh reduce over dp before tp, the other two over tp before dp.

Each waits for a neighbour, all around. The two that changed their order are to blame, for
all four did it the other way before.
"""
# expect: state=hang kind=order_inversion certainty=likely culprits=0,3 victims=1,2
# expect: site=culprit victim_site=victim

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh["dp"].get_group(), mesh["tp"].get_group()
    partial, gradient = torch.randn(32), torch.randn(32)
    for step in range(30):
        overlap = step >= 14 and (dp.rank() + tp.rank()) % 2 == 0
        if overlap:  # "communicate the gradient while the activations are computed"
            dist.all_reduce(gradient, group=dp)  # culprit
            dist.all_reduce(partial, group=tp)
        else:
            dist.all_reduce(partial, group=tp)  # victim
            dist.all_reduce(gradient, group=dp)
        partial, gradient = partial / 2, gradient / 2
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: different_order at `if overlap:` | different_order at `dist.all_reduce(gradient, g...` (22)
