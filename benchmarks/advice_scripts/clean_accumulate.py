"""accelerate with accumulated gradients, a schedule, and an evaluation every twenty batches."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=4)


def rows(count):
    return TensorDataset(torch.randn(count, 24), torch.randint(0, 3, (count,)))


model = nn.Sequential(nn.Linear(24, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
model, optimizer, training, validation, schedule = accelerator.prepare(
    model, optimizer, DataLoader(rows(480), batch_size=8, shuffle=True), DataLoader(rows(64), batch_size=16), schedule
)
for number, (features, labels) in enumerate(training, 1):
    with accelerator.accumulate(model):
        accelerator.backward(nn.functional.cross_entropy(model(features), labels))
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if number % 20 == 0:
        model.eval()
        right = []
        with torch.no_grad():
            for features, labels in validation:
                guesses = model(features).argmax(-1)
                right.append(accelerator.gather_for_metrics((guesses, labels)))
        share = torch.cat([(guesses == labels).float() for guesses, labels in right]).mean().item()
        accelerator.print(f"batch {number}: accuracy {share:.2f}")
        model.train()
