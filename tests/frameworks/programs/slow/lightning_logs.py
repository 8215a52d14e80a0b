"""Lightning: a callback writes the weights in each step, on rank 0 alone."""

import sys
import time

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

UNTIL_S = time.monotonic() + float(sys.argv[1])


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def training_step(self, batch):
        inputs, labels = batch
        time.sleep(0.05)  # what a device would do meanwhile
        return torch.nn.functional.cross_entropy(self.layer(inputs), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Weights(lightning.Callback):
    def on_train_batch_end(self, trainer, model, *_):
        if trainer.is_global_zero:
            until_s = time.monotonic() + 0.04
            while time.monotonic() < until_s:
                torch.save(model.state_dict(), "weights.pt")  # writes

    def on_train_epoch_end(self, trainer, _):
        over = trainer.strategy.broadcast(time.monotonic() > UNTIL_S)
        trainer.should_stop = over


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=-1,
    logger=False,
    enable_progress_bar=False,
    enable_checkpointing=False,
    callbacks=[Weights()],
)
data = TensorDataset(torch.randn(256, 8), torch.randint(0, 2, (256,)))
trainer.fit(Model(), DataLoader(data, batch_size=4))
