"""Hides random pixels on the device, with shapes that stay, and accumulates the gradients of four batches."""

import torch
import torch_xla
from torch import nn

device = torch_xla.device()
coder = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 256)).to(device)
optimizer = torch.optim.Adam(coder.parameters(), lr=1e-3)
images = torch.rand(64, 8, 1, 16, 16)
for number, batch in enumerate(images, 1):
    batch = batch.to(device)
    hidden = torch.rand(batch.shape, device=device) < 0.3
    rebuilt = coder(torch.where(hidden, torch.zeros_like(batch), batch)).view_as(batch)
    errors = (rebuilt - batch).square() * hidden
    (errors.sum() / hidden.sum().clamp(min=1) / 4).backward()
    if number % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
    torch_xla.sync()
