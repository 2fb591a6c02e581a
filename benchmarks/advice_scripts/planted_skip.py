"""Skips the steps of accelerate whose gradients are not finite, as many language model scripts do."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=2)
model = nn.Sequential(nn.Embedding(100, 32), nn.Flatten(), nn.Linear(32 * 12, 100))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
rows = TensorDataset(torch.randint(0, 100, (400, 12)), torch.randint(0, 100, (400,)))
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(rows, batch_size=8))
skipped = 0
for tokens, following in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(tokens), following)
        accelerator.backward(loss)
        squares = [parameter.grad.square().sum() for parameter in model.parameters()]
        if torch.isfinite(torch.stack(squares).sum()):  # host-read
            optimizer.step()
        else:
            skipped += 1
        optimizer.zero_grad()
print("skipped", skipped)
