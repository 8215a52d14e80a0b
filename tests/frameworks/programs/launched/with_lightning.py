"""Lightning on two devices; with ``stall`` rank 1 does not come back from a step."""

import sys
import time

import lightning
import torch


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        while "stall" in sys.argv and (index, self.global_rank) == (3, 1):
            time.sleep(0.1)  # culprit
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def main():
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.rand(64, 4), batch_size=2))
    print(f"done {trainer.global_rank} of {trainer.world_size}", flush=True)


main()
