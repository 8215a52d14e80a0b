"""DeepSpeed ZeRO-3 with experts, of which one gets no tokens on one rank; --leaf: as a leaf."""

# launched with --nproc-per-node=2
# watched with --hang-after 60
# expect: state=hang kind=op_mismatch culprits=1 victims=0 certainty=proved|likely
# expect: function=forward site=next advice=set_z3_leaf_modules
# expect --leaf: state=ok may_be=slow
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
import torch

# What it would compile at its first use takes a minute.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.each = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(4))

    def forward(self, tokens, chosen):
        outputs = torch.zeros_like(tokens)
        for number, expert in enumerate(self.each):
            mine = (chosen == number).nonzero().flatten()
            if len(mine):
                outputs = outputs.index_add(0, mine, expert(tokens[mine]))
        return outputs


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 16)
        self.experts = Experts()
        self.last = torch.nn.Linear(16, 2)

    def forward(self, tokens, chosen):
        mixed = self.experts(self.first(tokens), chosen)
        return self.last(mixed)  # next


def main():
    model = Net()
    if "--leaf" in sys.argv:
        deepspeed.utils.set_z3_leaf_modules(model, [Experts])
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    engine, _, _, _ = deepspeed.initialize(model=model, config=config)
    rank = torch.distributed.get_rank()
    for step in range(10):
        used = 3 if step == 5 and rank == 1 else 4
        outputs = engine(torch.randn(8, 16), torch.arange(8) % used)
        engine.backward(outputs.square().mean())
        engine.step()


main()

# cause: data_condition at `if len(mine):`
