"""Accelerate without its even batches: one process runs out of data before the other."""

# launched with --nproc-per-node=2
# watched with --hang-after 60
# The one has too few batches or the other too many: both are named.
# expect: state=hang kind=finished_early culprits=0,1 certainty=possible
# expect: site=gathers call=Accelerator.gather
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=False))
data = TensorDataset(torch.randn(36, 8), torch.randint(0, 2, (36,)))
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4))
total = torch.zeros(1)
for inputs, labels in batches:
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    total += loss.detach()
print(accelerator.gather(total))  # gathers

# cause: uneven_loop at `for inputs, labels in batches:` | uneven_loop at `accelerator = Acc...`
