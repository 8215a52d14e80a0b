"""Accelerate: what one process reads takes longer."""

import sys
import time

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

UNTIL_S = time.monotonic() + float(sys.argv[1])
accelerator = Accelerator(cpu=True)


class Samples(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if accelerator.process_index == 1:
            time.sleep(0.02)  # reads
        return torch.randn(8), index % 2


model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, batches = accelerator.prepare(
    model, optimizer, DataLoader(Samples(), batch_size=2)
)
over = False
while not over:
    for inputs, labels in batches:
        time.sleep(0.04)  # what a device would do meanwhile
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    ended = torch.tensor(float(time.monotonic() > UNTIL_S))
    over = bool(accelerator.reduce(ended) > 0)
