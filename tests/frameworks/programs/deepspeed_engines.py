"""DeepSpeed: a step, a backward pass, or a parameter that one rank alone leaves out or uses."""

# launched with --nproc-per-node=2
# watched with --hang-after 60
# expect 1 healthy: state=ok may_be=slow
# expect 1 skips-step: state=failed kind=op_mismatch culprits=1 certainty=proved|likely
# By its collectives the one made a turn less or the other a turn more: the source tells.
# expect 2 skips-backward: state=hang kind=order_inversion culprits=1 victims=0 certainty=likely
# expect 2 skips-backward: site=saves advice=backward()
# expect 3 skips-step: state=hang kind=op_mismatch culprits=1 victims=0 certainty=proved|likely
# expect 3 skips-step: advice=step()
# expect 3 uses-spare: state=hang kind=subset_entered culprits=0 victims=1 certainty=proved|likely
# expect 3 uses-spare: function=forward site=uses victim_site=goes_back
# expect 3 uses-spare: victim_call=DeepSpeedEngine.backward
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
import torch

# What it would compile at its first use takes a minute.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.last = torch.nn.Linear(32, 2)
        self.spare = torch.nn.Linear(2, 2)

    def forward(self, inputs, more):
        outputs = self.last(torch.relu(self.first(inputs)))
        if more:
            outputs = self.spare(outputs)  # uses
        return outputs


def train(stage, fault):
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    engine, _, _, _ = deepspeed.initialize(model=Net(), config=config)
    rank = torch.distributed.get_rank()
    for step in range(10):
        odd = step == 5 and rank == 1
        inputs, labels = torch.randn(4, 16), torch.randint(0, 2, (4,))
        outputs = engine(inputs, fault == "uses-spare" and step == 5 and rank == 0)
        loss = torch.nn.functional.cross_entropy(outputs, labels)
        if not (fault == "skips-backward" and odd):
            engine.backward(loss)  # goes_back
            if not (fault == "skips-step" and odd):
                engine.step()
    engine.save_checkpoint(f"zero-{stage}")  # saves


stage, fault = int(sys.argv[1]), sys.argv[2]
for each in (1, 2, 3) if fault == "healthy" else (stage,):
    train(each, fault)

# cause 1 skips-step: rank_condition at `if not (fault == "skips-step" and odd):`
# cause 2 skips-backward: rank_condition at `if not (fault == "skips-backward" and odd):`
# cause 3 skips-step: rank_condition at `if not (fault == "skips-step" and odd):`
# cause 3 uses-spare: rank_condition at `if more:` | rank_condition at `outputs = engine(...`
