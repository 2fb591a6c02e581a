"""A loop of accelerate that survives restarts: it goes on from the state that it saved last."""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAVED_EVERY = 5


def main(directory, steps):
    set_seed(0)
    accelerator = Accelerator()
    state = Path(directory, "state")
    data = TensorDataset(torch.randn(4 * int(steps) * accelerator.num_processes, 8))
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 4))
    first = 0
    if latest := sorted(state.glob("[0-9]*")):
        first = int(latest[-1].name)
        accelerator.load_state(str(latest[-1]))
        accelerator.print(f"goes on with step {first}", flush=True)
    for step, (value,) in enumerate(accelerator.skip_first_batches(loader, first), first + 1):
        loss = (model(value) - value.sum(1, keepdim=True)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % SAVED_EVERY == 0:
            staged = state / f"new-{step:04}"
            accelerator.save_state(str(staged))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                staged.replace(state / f"{step:04}")
            accelerator.print(f"step {step}: loss {loss.item():.4f}", flush=True)
            accelerator.wait_for_everyone()


if __name__ == "__main__":
    main(*sys.argv[1:])
