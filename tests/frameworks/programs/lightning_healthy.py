"""Lightning: training with validation, metrics over all ranks, early stopping and checkpoints."""

# launched with --nproc-per-node=2
# expect: state=ok may_be=slow
import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def training_step(self, batch):
        inputs, labels = batch
        loss = torch.nn.functional.cross_entropy(self.layer(inputs), labels)
        self.log("loss", loss, sync_dist=True, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch):
        inputs, labels = batch
        loss = torch.nn.functional.cross_entropy(self.layer(inputs), labels)
        self.log("val_loss", loss, sync_dist=True)

    def on_validation_epoch_end(self):
        self.report(self.all_gather(torch.ones(1)))

    @rank_zero_only
    def report(self, gathered):
        print(gathered.sum())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=4,
    logger=False,
    enable_progress_bar=False,
    callbacks=[
        EarlyStopping("val_loss", min_delta=10.0, patience=2),
        ModelCheckpoint(dirpath="checkpoints", monitor="val_loss"),
    ],
)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
trainer.fit(Model(), DataLoader(data, batch_size=4), DataLoader(data, batch_size=8))
