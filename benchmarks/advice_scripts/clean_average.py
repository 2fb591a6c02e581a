"""A warm-up in Python, a moving average of the weights, and a last batch that is smaller."""

import math

import torch
import torch_xla
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

device = torch_xla.device()
model = nn.Sequential(nn.Linear(20, 40), nn.GELU(), nn.Dropout(0.1), nn.Linear(40, 2)).to(device)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
rows = TensorDataset(torch.randn(125, 20), torch.randint(0, 2, (125,)))
step = 0
for _epoch in range(4):
    for features, labels in DataLoader(rows, batch_size=10):
        rate = 1e-3 * min(step / 10, 0.5 + 0.5 * math.cos(step / 50 * math.pi))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = nn.functional.cross_entropy(model(features.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(model)
        torch_xla.sync()
        step += 1
torch.save({name: value.cpu() for name, value in average.state_dict().items()}, "average.pt")
