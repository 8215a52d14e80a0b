"""Accelerate: predictions are gathered where only the main process comes."""

# launched with --nproc-per-node=2
# watched with --hang-after 60
# expect: state=hang kind=subset_entered culprits=0 victims=1 certainty=proved|likely
# expect: op=all_gather function=evaluate site=gathers call=Accelerator.gather_for_metrics
# expect: victim_site=waits victim_call=Accelerator.wait_for_everyone
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)


def evaluate(model, batches):
    predicted = []
    for inputs, _ in batches:
        with torch.no_grad():
            best = model(inputs).argmax(-1)
        if accelerator.is_main_process:
            predicted.append(accelerator.gather_for_metrics(best))  # gathers
    return predicted


data = TensorDataset(torch.randn(32, 8), torch.randint(0, 2, (32,)))
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4))
for _ in range(3):
    for inputs, labels in batches:
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
evaluate(model, batches)
accelerator.wait_for_everyone()  # waits

# cause: rank_condition at `if accelerator.is_main_process:`
