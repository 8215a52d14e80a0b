"""FSDP of the first generation, sharded over all ranks and in a hybrid of 2 x 2."""
# expect: state=ok exit=0
# With --evaluate rank 0 alone evaluates the sharded model, which gathers from all.
# expect --evaluate: state=hang kind=subset_entered certainty=proved culprits=0 victims=1,2,3
# expect --evaluate: group=default_pg site=culprit victim_site=victim

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def sharded(**options):
    network = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(3)])
    policy = ModuleWrapPolicy({torch.nn.Linear})
    device = torch.device("cpu")
    return FullyShardedDataParallel(network, auto_wrap_policy=policy, device_id=device, **options)


def train(model, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        loss = model(torch.randn(4, 32)).square().mean()
        loss.backward()  # victim
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def evaluate(model):
    losses = [model(batch).square().mean() for batch in torch.randn(2, 4, 32)]  # culprit
    return torch.stack(losses).mean()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    train(sharded(device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD), 6)
    model = sharded()
    train(model, 6)
    if "--evaluate" in sys.argv and dist.get_rank() == 0:
        evaluate(model)
    train(model, 6)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause --evaluate: rank_condition at `if "--evaluate" in sys.argv and dist.get_rank() == 0:`
