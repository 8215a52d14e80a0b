"""Rank 0 alone asks FSDP for the full state dict, which gathers from all ranks."""
# expect: state=hang kind=subset_entered certainty=proved culprits=0 victims=1,2,3
# expect: group=default_pg site=culprit victim_site=victim

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


def save(model, path):
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)  # culprit
    torch.save(state, path)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(1, 21):
        loss = model(torch.randn(8, 32)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 10:
            if dist.get_rank() == 0:
                save(model, Path(tempfile.mkdtemp(), "model.pt"))
            dist.barrier()  # victim
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: rank_condition at `if dist.get_rank() == 0:`
