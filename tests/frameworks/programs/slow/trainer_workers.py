"""HF Trainer: a data worker of one rank cannot keep up."""

import os
import sys
import time

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

UNTIL_S = time.monotonic() + float(sys.argv[1])
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return {"input_ids": torch.arange(8) + index % 50, "labels": torch.tensor(index % 2)}


def collate(samples):
    if os.environ["RANK"] == "1":
        time.sleep(0.1)  # decodes
    return torch.utils.data.default_collate(samples)


class Stops(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        time.sleep(0.03)  # what a device would do meanwhile

    def on_epoch_end(self, args, state, control, **_):
        over = torch.tensor(float(time.monotonic() > UNTIL_S))
        torch.distributed.all_reduce(over)
        control.should_training_stop = bool(over > 0)


trainer = Trainer(
    model=BertForSequenceClassification(BertConfig(vocab_size=100, num_attention_heads=2, **SIZES)),
    args=TrainingArguments(
        "out",
        num_train_epochs=1000,
        per_device_train_batch_size=4,
        save_strategy="no",
        dataloader_num_workers=1,
        dataloader_persistent_workers=True,
        use_cpu=True,
        report_to=[],
    ),
    train_dataset=Sentences(),
    data_collator=collate,
    callbacks=[Stops()],
)
trainer.train()
