"""A loop of Lightning Fabric whose workers share out the parameters; on one CPU, where the argument says so, whole."""

import json
import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import XLAFSDPStrategy
from torch import nn


def train(fabric):
    fabric.seed_everything(1)
    model = fabric.setup_module(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = fabric.setup_optimizers(torch.optim.Adam(model.parameters(), lr=1e-2))
    numbers = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(6):
        value = torch.randn(8, 8, generator=numbers).to(fabric.device)
        target = torch.randn(8, 1, generator=numbers).to(fabric.device)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(value), target)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        losses.append(loss.item())
    held = sum(parameter.numel() for parameter in model.parameters())
    Path(sys.argv[1], str(fabric.global_rank)).write_text(
        json.dumps({"device": str(fabric.device), "losses": losses, "elements_held": held})
    )


if __name__ == "__main__":
    if sys.argv[2:] == ["cpu"]:
        fabric = Fabric(accelerator="cpu", devices=1)
    else:
        fabric = Fabric(accelerator="tpu", strategy=XLAFSDPStrategy(auto_wrap_policy={nn.Linear}))
    fabric.launch(train)
