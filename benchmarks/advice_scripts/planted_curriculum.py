"""Lengthens the sequences by one token a step, by a slice on the device."""

import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch import nn
from torch.utils.data import DataLoader

device = xm.xla_device()
model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
texts = DataLoader(torch.randint(0, 50, (320, 64)), batch_size=8)
for step, tokens in enumerate(pl.MpDeviceLoader(texts, device)):
    tokens = tokens[:, : 8 + step]  # recompile
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    xm.optimizer_step(optimizer)
