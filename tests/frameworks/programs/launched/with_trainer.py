"""The Trainer of Transformers; with ``stall`` rank 1 does not come back from a step."""

import os
import sys
import time

import torch
from transformers import Trainer, TrainingArguments


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {"inputs": torch.full((4,), index / 64), "labels": torch.ones(1)}


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, inputs, labels):
        return {"loss": ((self.layer(inputs) - labels) ** 2).mean()}


class Stalling(Trainer):
    def training_step(self, *args, **kwargs):
        while "stall" in sys.argv and (self.state.global_step, self.args.process_index) == (3, 1):
            time.sleep(0.1)  # culprit
        return super().training_step(*args, **kwargs)


def main():
    arguments = TrainingArguments(
        "out",
        use_cpu=True,
        per_device_train_batch_size=2,
        max_steps=10,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    Stalling(model=Tiny(), args=arguments, train_dataset=Samples()).train()
    print(f"done {arguments.process_index} of {arguments.world_size}", flush=True)
    # The Trainer gathers its loss in its last lines. A thread of gloo that has that tensor while
    # the interpreter shuts down aborts the process, bare as well as watched.
    os._exit(0)


main()
