"""A loop of accelerate: accumulation, clipping, a scheduler, states saved and loaded, values of all ranks."""

import json
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, set_seed
from safetensors import safe_open
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DROPOUT = float(os.environ.get("DROPOUT", "0"))
IS_ON_CPU = os.environ.get("USE_TORCH_XLA") == "0"
SAVED_AFTER = 4


def main(told, action="train"):
    set_seed(3)
    accelerator = Accelerator(
        gradient_accumulation_steps=2, cpu=IS_ON_CPU, rng_types=["generator"] if IS_ON_CPU else ["generator", "xla"]
    )
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    numbers = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(64, 8, generator=numbers), torch.randn(64, 1, generator=numbers))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, DataLoader(data, 4), scheduler)
    begin = 0
    if action == "resume":
        accelerator.load_state("state")
        loader, begin = accelerator.skip_first_batches(loader, SAVED_AFTER), SAVED_AFTER
    losses, norms = [], []
    for step, (value, target) in enumerate(loader, begin):
        if action == "save" and step == SAVED_AFTER:
            accelerator.save_state("state")
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(value), target)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.1).item())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
    one = torch.ones(2, device=accelerator.device)
    accelerator.save_model(accelerator.unwrap_model(model), "model")
    accelerator.wait_for_everyone()
    with safe_open("model/model.safetensors", "pt") as file:
        saved = {name: float(file.get_tensor(name).double().sum()) for name in file.keys()}  # noqa: SIM118
    trained = accelerator.unwrap_model(model).state_dict()
    Path(told, str(accelerator.process_index)).write_text(
        json.dumps(
            {
                "device": str(accelerator.device),
                "processes": accelerator.num_processes,
                "losses": losses,
                "norms": norms,
                "reduced": accelerator.reduce(one, "sum").tolist(),
                "saved": saved,
                "weights": {name: float(tensor.cpu().double().sum()) for name, tensor in trained.items()},
                "broadcast": broadcast_object_list([accelerator.process_index]),
                "everyone": accelerator.gather_for_metrics(one * accelerator.process_index).tolist(),
            }
        )
    )
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
