"""accelerate, with a collate function that crops each batch to another random size."""

import random

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


def crop(samples):
    size = random.Random(len(seen)).randrange(8, 40)
    seen.append(size)
    return torch.stack(samples)[..., :size, :size]


seen = []
accelerator = Accelerator()
model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
images = DataLoader(torch.randn(320, 1, 40, 40), batch_size=8, collate_fn=crop)
model, optimizer, images = accelerator.prepare(model, optimizer, images)
for image in images:  # recompile
    loss = model(image).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
