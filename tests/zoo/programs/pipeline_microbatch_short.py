"""Four stages of torch.distributed.pipelining; one of them runs a micro-batch less."""
# expect: state=hang kind=missing_peer culprits=2 victims=0,1,3 site=culprit certainty=proved|likely

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

MICRO_BATCHES = 4
BATCH = 24


def main():
    dist.init_process_group("gloo")
    stage, stages = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(stage)
    module = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    for step in range(12):
        # One stage reads the number from a file that was changed on the way.
        count = MICRO_BATCHES - 1 if stage == 2 and step == 5 else MICRO_BATCHES
        shape = torch.empty(BATCH // MICRO_BATCHES, 16, requires_grad=True)
        pipeline = ScheduleGPipe(
            PipelineStage(module, stage, stages, torch.device("cpu"), shape, shape),
            n_microbatches=count,
            loss_fn=torch.nn.functional.mse_loss,
        )
        inputs = (torch.randn(BATCH, 16),) if stage == 0 else ()
        target = torch.zeros(BATCH, 16) if stage == stages - 1 else None
        optimizer.zero_grad()
        pipeline.step(*inputs, target=target)  # culprit
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# cause: unmatched_p2p at `pipeline.step...` | uneven_loop at `count = MICRO_BATCHES - 1 if...`
