"""Two networks that train against each other, with two optimizers and one execution a batch."""

import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch import nn
from torch.utils.data import DataLoader

device = xm.xla_device()
maker = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32)).to(device)
judge = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)).to(device)
of_maker = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_judge = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
distance = nn.BCEWithLogitsLoss()
for step, real in enumerate(pl.MpDeviceLoader(DataLoader(torch.randn(480, 32), batch_size=8), device)):
    fake = maker(torch.randn(8, 16, device=device))
    of_judge.zero_grad()
    loss = distance(judge(real), torch.ones(8, 1, device=device))
    loss = loss + distance(judge(fake.detach()), torch.zeros(8, 1, device=device))
    loss.backward()
    of_judge.step()
    of_maker.zero_grad()
    distance(judge(fake), torch.ones(8, 1, device=device)).backward()
    of_maker.step()
    if step % 20 == 0:
        xm.add_step_closure(lambda value: print(f"judge {value.item():.3f}"), args=(loss,))
