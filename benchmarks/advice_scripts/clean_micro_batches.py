"""accelerate accumulates four micro-batches, and prints the loss of every twentieth batch."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=4)
model = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = DataLoader(TensorDataset(torch.randn(640, 24), torch.randint(0, 6, (640,))), batch_size=8, shuffle=True)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for number, (rows, labels) in enumerate(data):
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(rows), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    if number % 20 == 19:
        accelerator.print(loss.item())
