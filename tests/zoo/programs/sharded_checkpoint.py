"""Distributed checkpoints of a sharded model: saved, loaded, and saved in the background."""
# expect: state=ok exit=0
# With --stuck the storage of one rank does not answer.
# expect --stuck: state=hang kind=never_entered reason=checkpoint_io culprits=2 victims=0,1,3
# expect --stuck: op=gather_object site=culprit victim_site=victim certainty=likely|possible
# With --load one rank does without the checkpoint that the others load.
# expect --load: state=failed kind=op_mismatch culprits=3 victims=0,1,2
# expect --load: group=default_pg victim_site=loading certainty=proved|likely
# With --shared the thread that saves in the background has no group of its own. Which calls meet
# is chance: gloo aborts a rank for some, and its threads can be looked at no more; in others
# all wait.
# expect --shared: state=hang|failed kind=op_mismatch certainty=likely|possible
# expect --shared: culprits=0,1,2,3 victims= group=default_pg text=thread

import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard


class Storage(dcp.FileSystemWriter):
    def write_data(self, plan, planner):
        if "--stuck" in sys.argv and dist.get_rank() == 2:
            time.sleep(10_000)  # culprit
        return super().write_data(plan, planner)


def main():
    dist.init_process_group("gloo")
    saving = None if "--shared" in sys.argv else dist.new_group(backend="gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(3)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    path = [tempfile.mkdtemp()]
    dist.broadcast_object_list(path, src=0)
    for step in range(1, 31):
        loss = model(torch.randn(4, 32)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if step == 5:
            dcp.save(state, storage_writer=Storage(f"{path[0]}/5"))  # victim
            if "--load" not in sys.argv or dist.get_rank() < 3:
                dcp.load(state, checkpoint_id=f"{path[0]}/5")  # loading
        if step == 10:
            saved = dcp.async_save(state, checkpoint_id=f"{path[0]}/10", process_group=saving)
    saved.result()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause --stuck: stuck_line at `time.sleep(10_000)`
# cause --load: rank_condition at `if "--load" not in sys.argv or dist.get_rank() < 3:`
# cause --shared: unordered_threads at `saved = dcp...` | unordered_threads at `saving = None...`
