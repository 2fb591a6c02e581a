"""A loop of Lightning Fabric; with SHARED=1 its workers share out the parameters."""

import json
import os
import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import XLAFSDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLIP = float(os.environ.get("CLIP", "1.0"))
IS_SHARED = os.environ.get("SHARED") == "1"


def train(fabric):
    fabric.seed_everything(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    if IS_SHARED:  # which makes parameters of its own
        model = fabric.setup_module(model)
        optimizer = fabric.setup_optimizers(torch.optim.Adam(model.parameters(), lr=1e-2))
    else:
        model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    numbers = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(32, 8, generator=numbers), torch.randn(32, 1, generator=numbers))
    losses = []
    for value, target in fabric.setup_dataloaders(DataLoader(data, 4)):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(value), target)
        fabric.backward(loss)
        if CLIP:
            fabric.clip_gradients(model, optimizer, max_norm=CLIP)
        optimizer.step()
        losses.append(float(fabric.all_gather(loss.detach().reshape(1)).mean()))
    if not IS_SHARED:
        fabric.save("state.ckpt", {"model": model, "optimizer": optimizer})
    Path(sys.argv[1], str(fabric.global_rank)).write_text(
        json.dumps(
            {
                "device": str(fabric.device),
                "world_size": fabric.world_size,
                "losses": losses,
                "broadcast": fabric.broadcast(f"rank {fabric.global_rank}"),
                "elements_held": sum(parameter.numel() for parameter in model.parameters()),
            }
        )
    )


if __name__ == "__main__":
    accelerator = sys.argv[2] if len(sys.argv) > 2 else "auto"
    if IS_SHARED and accelerator == "auto":
        fabric = Fabric(accelerator="tpu", strategy=XLAFSDPStrategy(auto_wrap_policy={nn.Linear}))
    else:
        fabric = Fabric(accelerator=accelerator, devices=int(os.environ.get("DEVICES", "0")) or "auto")
    fabric.launch(train)
