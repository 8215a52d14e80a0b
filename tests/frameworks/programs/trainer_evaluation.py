"""HF Trainer: a callback evaluates, on the first process only."""

# launched with --nproc-per-node=2
# watched with --hang-after 60
# expect: state=hang kind=subset_entered culprits=0 victims=1 certainty=proved|likely
# expect: site=evaluates call=Trainer.evaluate victim_site=trains victim_call=Trainer.train
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {"input_ids": torch.arange(8) + index, "labels": torch.tensor(index % 2)}


class EvaluateOften(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero and state.global_step == 4:
            trainer.evaluate()  # evaluates


trainer = Trainer(
    model=BertForSequenceClassification(BertConfig(vocab_size=100, num_attention_heads=2, **SIZES)),
    args=TrainingArguments(
        "out", max_steps=10, per_device_train_batch_size=4, use_cpu=True, report_to=[]
    ),
    train_dataset=Sentences(),
    eval_dataset=Sentences(),
    callbacks=[EvaluateOften()],
)
trainer.train()  # trains

# cause: rank_condition at `if state.is_world_process_zero and state.global_step == 4:`
