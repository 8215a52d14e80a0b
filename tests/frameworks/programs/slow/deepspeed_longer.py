"""DeepSpeed: one rank has longer sequences."""

import os
import sys
import time

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
import torch

# What it would compile at its first use takes a minute.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
UNTIL_S = time.monotonic() + float(sys.argv[1])
torch.set_num_threads(1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.LSTM(16, 32, batch_first=True)
        self.last = torch.nn.Linear(32, 2)

    def forward(self, inputs):
        outputs, _ = self.cell(inputs)
        return self.last(outputs[:, -1])


config = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}
engine, _, _, _ = deepspeed.initialize(model=Net(), config=config)
length = 800 if torch.distributed.get_rank() == 1 else 100
over = False
while not over:
    for _ in range(20):
        outputs = engine(torch.randn(4, length, 16))
        loss = torch.nn.functional.cross_entropy(outputs, torch.randint(0, 2, (4,)))
        engine.backward(loss)  # goes_back
        engine.step()
    ended = torch.tensor(float(time.monotonic() > UNTIL_S))
    torch.distributed.all_reduce(ended)
    over = bool(ended > 0)
