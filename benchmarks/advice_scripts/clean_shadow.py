"""Keeps a moving average of the weights on the device, and prints every 25 steps in a closure."""

import copy

import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = xm.xla_device()
model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 5)).to(device)
shadow = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = DataLoader(TensorDataset(torch.randn(600, 20), torch.randint(0, 5, (600,))), batch_size=10, drop_last=True)
for step, (rows, labels) in enumerate(pl.MpDeviceLoader(data, device)):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(rows), labels)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for kept, now in zip(shadow.parameters(), model.parameters(), strict=True):
            kept.lerp_(now, 0.01)
    if step % 25 == 24:
        xm.add_step_closure(print, args=(loss,))
