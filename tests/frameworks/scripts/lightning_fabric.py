"""A loop of Lightning Fabric."""

import json
import os
import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLIP = float(os.environ.get("CLIP", "1.0"))


def train(fabric):
    fabric.seed_everything(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
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
    fabric.save("state.ckpt", {"model": model, "optimizer": optimizer})
    Path(sys.argv[1], str(fabric.global_rank)).write_text(
        json.dumps(
            {
                "device": str(fabric.device),
                "world_size": fabric.world_size,
                "losses": losses,
                "broadcast": fabric.broadcast(f"rank {fabric.global_rank}"),
            }
        )
    )


if __name__ == "__main__":
    fabric = Fabric(
        accelerator=sys.argv[2] if len(sys.argv) > 2 else "auto",
        devices=int(os.environ["DEVICES"]) if "DEVICES" in os.environ else "auto",
    )
    fabric.launch(train)
