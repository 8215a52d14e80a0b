"""Accelerate: a barrier in a branch, which the other process goes past to its next step."""

# launched with --nproc-per-node=2
# watched with --hang-after 60
# expect: state=hang kind=subset_entered culprits=0 victims=1 certainty=proved|likely
# expect: op=barrier site=waits call=Accelerator.wait_for_everyone
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4))
for step, (inputs, labels) in enumerate(batches):
    with accelerator.accumulate(model):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    if step == 4 and accelerator.process_index == 0:
        torch.save(accelerator.unwrap_model(model).state_dict(), "best.pt")
        accelerator.wait_for_everyone()  # waits

# cause: rank_condition at `if step == 4 and accelerator.process_index == 0:`
