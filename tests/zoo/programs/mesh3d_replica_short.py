"""Pipeline, data and tensor parallel on 2 x 2 x 2; one replica has a batch less.

Its four ranks are done with the epoch and wait to evaluate; the four of the other replica
wait for their gradients.
"""
# launched with --nproc-per-node=8
# expect: state=hang kind=finished_early certainty=likely culprits=2,3,6,7 victims=0,1,4,5
# expect: site=culprit victim_site=victim

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

SAMPLES = 156


def batches_of(replica, replicas, batch_size):
    """Every replicas-th sample from the replica's own on; the last replica gets fewer."""
    indices = range(replica, SAMPLES, replicas)
    return [indices[at : at + batch_size] for at in range(0, len(indices), batch_size)]


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    pp, dp, tp = (mesh[name].get_group() for name in ("pp", "dp", "tp"))
    stage, peer = pp.rank(), dist.get_global_rank(pp, 1 - pp.rank())
    torch.manual_seed(stage)
    weights = torch.randn(16, 16)
    drop_last = dp.rank() == 1  # set in the configuration of one node alone
    batches = batches_of(dp.rank(), dp.size(), 5)
    for _ in batches[:-1] if drop_last else batches:
        activation = torch.randn(5, 16)
        if stage == 1:
            dist.recv(activation, src=peer, group=pp)
        hidden = activation @ weights
        dist.all_reduce(hidden, group=tp)
        if stage == 0:
            dist.send(hidden, dst=peer, group=pp)
        gradient = activation.t() @ hidden
        dist.all_reduce(gradient, group=dp)  # victim
        weights -= 1e-5 * gradient
    dist.barrier()  # culprit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: uneven_loop at `for _ in batches[:-1]...` | uneven_loop at `drop_last = dp.rank() == 1`
