"""Lightning: a metric that is reduced over the ranks is logged on one of them only."""

# launched with --nproc-per-node=2
# watched with --hang-after 60
# expect: state=hang kind=subset_entered culprits=0 victims=1 certainty=proved|likely
# expect: function=training_step site=logs call=LightningModule.log
# expect: victim_site=fits victim_call=Trainer.fit
import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def training_step(self, batch, index):
        inputs, labels = batch
        loss = torch.nn.functional.cross_entropy(self.layer(inputs), labels)
        if self.global_rank == 0 and index == 5:
            self.log("loss", loss, sync_dist=True, on_step=True)  # logs
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
data = TensorDataset(torch.randn(128, 8), torch.randint(0, 2, (128,)))
trainer.fit(Model(), DataLoader(data, batch_size=4))  # fits

# cause: rank_condition at `if self.global_rank == 0 and index == 5:`
