"""Keeps the norm of the gradients of every step in a Python list."""

import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = xm.xla_device()
model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
houses = DataLoader(TensorDataset(torch.randn(480, 32), torch.randn(480, 1)), batch_size=12)
norms = []
for rooms, price in pl.MpDeviceLoader(houses, device):
    loss = nn.functional.mse_loss(model(rooms), price)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    norms.append(float(norm))  # host-read
    optimizer.step()
    optimizer.zero_grad()
print(max(norms))
