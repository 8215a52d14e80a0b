"""Lightning: each rank stops by what it alone sees, and one of them does so first."""

# launched with --nproc-per-node=2
# watched with --hang-after 60
# expect: state=hang kind=op_mismatch culprits=0 victims=1 certainty=proved|likely
# expect: site=fits call=Trainer.fit victim_site=fits victim_call=Trainer.fit
import lightning
import torch
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader, TensorDataset


class StopOnPlateau(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if trainer.global_step >= 12 + 8 * trainer.global_rank:
            trainer.should_stop = True


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def training_step(self, batch):
        inputs, labels = batch
        return torch.nn.functional.cross_entropy(self.layer(inputs), labels)

    def validation_step(self, batch):
        self.log("val_loss", self.training_step(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=4,
    min_epochs=0,
    num_sanity_val_steps=0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[StopOnPlateau()],
)
data = TensorDataset(torch.randn(256, 8), torch.randint(0, 2, (256,)))
trainer.fit(Model(), DataLoader(data, batch_size=4), DataLoader(data, batch_size=64))  # fits

# cause: rank_condition at `if trainer.glob...` | early_exit at `trainer.should_stop = True`
