"""Two pipelines of two stages; one rank asks the store for a key that nobody sets."""
# expect: state=hang kind=never_entered reason=store_wait culprits=1 victims=0,2,3
# expect: site=culprit certainty=likely|possible

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

MICRO_BATCHES = 3


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    pp, dp = mesh["pp"].get_group(), mesh["dp"].get_group()
    peer = dist.get_global_rank(pp, 1 - pp.rank())
    store = dist.PrefixStore("train", dist.distributed_c10d._get_default_store())  # noqa: SLF001
    store.set_timeout(timedelta(hours=1))
    weights = torch.randn(16, 16)
    for step in range(30):
        gradient = torch.zeros(16, 16)
        for _ in range(MICRO_BATCHES):
            activation = torch.randn(4, 16)
            if pp.rank() == 0:
                dist.send(activation @ weights, dst=peer, group=pp)
            else:
                dist.recv(activation, src=peer, group=pp)
                gradient += activation.t() @ (activation @ weights)
        if rank == 1 and step == 10:
            weights *= float(store.get("learning-rate-of-epoch-2"))  # culprit
        dist.all_reduce(gradient, group=dp)
        weights -= 1e-5 * gradient
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: stuck_line at `weights *= float(store.get("learning-rate-of-epoch-2"))`
