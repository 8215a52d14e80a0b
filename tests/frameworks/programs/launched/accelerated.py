"""A loop of Accelerate; with ``stall`` rank 1 does not come back from a step."""

import sys
import time

import torch
from accelerate import Accelerator


def main():
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = torch.utils.data.DataLoader(torch.rand(64, 4), batch_size=2)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    for step, batch in enumerate(batches):
        while "stall" in sys.argv and (step, accelerator.process_index) == (5, 1):
            time.sleep(0.1)  # culprit
        accelerator.backward(model(batch).sum())
        optimizer.step()
    accelerator.wait_for_everyone()
    print(f"done {accelerator.process_index} of {accelerator.num_processes}", flush=True)


main()
