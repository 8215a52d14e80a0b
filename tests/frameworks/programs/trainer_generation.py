"""Text is generated with synced_gpus, as sharded weights need it, on the first process only."""

# launched with --nproc-per-node=2
# watched with --hang-after 60
# expect: state=hang kind=subset_entered culprits=0 victims=1 certainty=proved|likely
# expect: op=all_reduce function=on_step_end site=generates call=GenerationMixin.generate
# expect: victim_site=trains victim_call=Trainer.train
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

CONFIG = GPT2Config(vocab_size=100, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2)


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {"input_ids": torch.arange(8) + index % 90, "labels": torch.arange(8)}


class ShowSample(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 4 and args.process_index == 0:
            start = torch.tensor([[1, 5]])
            trainer.model.generate(start, max_new_tokens=4, synced_gpus=True)  # generates


trainer = Trainer(
    model=GPT2LMHeadModel(CONFIG),
    args=TrainingArguments(
        "out", max_steps=10, per_device_train_batch_size=4, use_cpu=True, report_to=[]
    ),
    train_dataset=Sentences(),
    callbacks=[ShowSample()],
)
trainer.train()  # trains

# cause: rank_condition at `if state.global_step == 4 and args.process_index == 0:`
