# memory-growth
"""Sums the losses of an epoch with their gradients' graphs, so that all activations stay in HBM."""

import torch
import torch_xla
from torch import nn

device = torch_xla.device()
model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.randn(40, 256, 64)
total = 0
for batch in data:
    batch = batch.to(device)
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward(retain_graph=True)
    optimizer.step()
    total = total + loss
    torch_xla.sync()
print("mean loss", total.item() / len(data))
