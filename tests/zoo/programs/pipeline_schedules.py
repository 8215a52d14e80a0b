"""Four stages of torch.distributed.pipelining, by three of its schedules in turn."""
# expect: state=ok exit=0
# With --skip a stage in the middle leaves out a step, in the schedule 1F1B.
# expect --skip: state=hang kind=missing_peer culprits=2 victims=0,1,3
# expect --skip: group=default_pg site=culprit victim_site=victim certainty=proved|likely

import sys

import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

STEPS = 6
LOSS = torch.nn.functional.mse_loss


def train(pipeline, parts):
    stage, stages = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.01)
    skips = "--skip" in sys.argv and stage == 2 and isinstance(pipeline, Schedule1F1B)
    for step in range(STEPS):
        if skips and step == 3:
            continue
        inputs = (torch.randn(8, 16),) if stage == 0 else ()
        target = torch.zeros(8, 16) if stage == stages - 1 else None
        optimizer.zero_grad()
        pipeline.step(*inputs, target=target)  # victim
        optimizer.step()
    dist.barrier()  # culprit


def main():
    dist.init_process_group("gloo")
    stage, stages = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu")
    parts = [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()) for _ in range(2)]
    for schedule in (ScheduleGPipe, Schedule1F1B):
        part = PipelineStage(parts[0], stage, stages, device)
        train(schedule(part, n_microbatches=4, loss_fn=LOSS), parts[:1])
    both = [
        PipelineStage(part, stage + turn * stages, 2 * stages, device)
        for turn, part in enumerate(parts)
    ]
    train(ScheduleInterleaved1F1B(both, n_microbatches=4, loss_fn=LOSS), parts)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause --skip: skipped_iteration at `continue` | rank_condition at `if skips and step == 3:`
