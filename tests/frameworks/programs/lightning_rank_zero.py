"""Lightning: code for rank zero only, in a hook, gathers from all; the others come to a barrier."""

# launched with --nproc-per-node=2
# watched with --hang-after 60
# expect: state=hang kind=subset_entered culprits=0 victims=1 certainty=proved|likely
# expect: op=all_gather function=report site=gathers call=LightningModule.all_gather
# expect: victim_site=waits victim_call=DDPStrategy.barrier text=@rank_zero_only
import lightning
import torch
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def training_step(self, batch):
        inputs, labels = batch
        return torch.nn.functional.cross_entropy(self.layer(inputs), labels)

    def validation_step(self, batch):
        self.log("val_loss", self.training_step(batch), sync_dist=True)

    def on_validation_epoch_end(self):
        self.report()

    @rank_zero_only
    def report(self):
        print(self.all_gather(torch.ones(1)))  # gathers

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=1,
    num_sanity_val_steps=0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
trainer.fit(Model(), DataLoader(data, batch_size=4), DataLoader(data, batch_size=8))
trainer.strategy.barrier()  # waits

# cause: rank_condition at `@rank_zero_only`
