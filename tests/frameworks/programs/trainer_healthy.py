"""HF Trainer with evaluations and checkpoints; then Accelerate, gathering and saving its state."""

# launched with --nproc-per-node=2
# expect: state=ok may_be=slow
import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        return {"input_ids": torch.arange(8) + index, "labels": torch.tensor(index % 2)}


trainer = Trainer(
    model=BertForSequenceClassification(BertConfig(vocab_size=100, num_attention_heads=2, **SIZES)),
    args=TrainingArguments(
        "out",
        max_steps=9,
        per_device_train_batch_size=4,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        use_cpu=True,
        report_to=[],
    ),
    train_dataset=Sentences(),
    eval_dataset=Sentences(),
)
trainer.train()

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = DataLoader(Sentences(), batch_size=4)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
for step, batch in enumerate(batches):
    outputs = model(batch["input_ids"].float())
    loss = torch.nn.functional.cross_entropy(outputs, batch["labels"])
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    gathered = accelerator.gather_for_metrics(outputs.argmax(-1))
    if accelerator.is_main_process:
        print(step, gathered.shape)
accelerator.wait_for_everyone()
accelerator.save_state("state")
accelerator.end_training()
# A thread of gloo that still has a gathered tensor while the interpreter shuts down aborts the
# process, bare as well as watched.
os._exit(0)
