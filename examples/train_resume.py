"""Trains on simulated NeuronCores and resumes from its latest checkpoint.

Started again after a fault, it repeats no step that a checkpoint has:

    neuron-run examples/train_resume.py --directory DIR

The first rank writes a checkpoint every few steps, atomically. The others wait for it in the next collective.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
from torch import nn

CHECKPOINT = "checkpoint.pt"


def main() -> None:
    """Trains `--steps` steps in total, over all restarts."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--directory", type=Path, required=True)
    arguments.add_argument("--steps", type=int, default=40)
    arguments.add_argument("--checkpoint-every", type=int, default=5)
    given = arguments.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("xla")
    rank, ranks = xm.get_ordinal(), xm.xrt_world_size()
    device = xm.xla_device()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first = load(given.directory / CHECKPOINT, model, optimizer)
    for step in range(first, given.steps):
        torch.manual_seed(step * ranks + rank)  # the same batch again after a restart
        inputs = torch.randn(32, 16).to(device)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        xm.optimizer_step(optimizer)
        xm.mark_step()
        if rank == 0 and (step + 1) % given.checkpoint_every == 0:
            save(given.directory / CHECKPOINT, step + 1, model, optimizer)
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Returns the next step; 0 without a checkpoint."""
    if not path.exists():
        return 0
    checkpoint = torch.load(path, map_location="cpu")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    print(f"goes on with step {checkpoint['step']}", flush=True)
    return int(checkpoint["step"])


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replaces the checkpoint. An interrupted write leaves the previous one."""
    staged = path.with_suffix(".new")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, staged)
    staged.replace(path)


if __name__ == "__main__":
    main()
