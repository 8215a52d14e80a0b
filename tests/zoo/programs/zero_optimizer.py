"""ZeroRedundancyOptimizer, whose state is brought together for a checkpoint."""
# expect: state=ok exit=0
# With --first-rank only the rank that writes the checkpoint calls for it.
# expect --first-rank: state=hang kind=subset_entered culprits=0 victims=1,2,3 op=broadcast
# expect --first-rank: group=default_pg site=culprit victim_site=victim certainty=proved|likely

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def save(optimizer, path):
    torch.save(optimizer.state_dict(), path)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(4)])
    model = DistributedDataParallel(network)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01
    )
    for step in range(1, 21):
        loss = model(torch.randn(4, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()  # victim
        optimizer.step()
        if step == 10:
            if "--first-rank" not in sys.argv:
                optimizer.consolidate_state_dict(to=0)
            if rank == 0:
                if "--first-rank" in sys.argv:
                    optimizer.consolidate_state_dict(to=0)  # culprit
                save(optimizer, Path(tempfile.mkdtemp(), "optimizer.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause --first-rank: rank_condition at `if rank == 0:`
