"""Trains and evaluates for three epochs; reads the sum of each epoch's losses once."""

import torch
import torch_xla
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def rows(count):
    return TensorDataset(torch.randn(count, 3, 16, 16), torch.randint(0, 10, (count,)))


def train(model, loader, optimizer, device):
    model.train()
    total = torch.zeros((), device=device)
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.detach()
        torch_xla.sync()
    return total.item() / len(loader)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    right = torch.zeros((), dtype=torch.long, device=device)
    for images, labels in loader:
        right += (model(images.to(device)).argmax(-1) == labels.to(device)).sum()
        torch_xla.sync()
    return right.item() / len(loader.dataset)


def main():
    device = torch_xla.device()
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    training = DataLoader(rows(160), batch_size=8, shuffle=True, drop_last=True)
    validation = DataLoader(rows(64), batch_size=16)
    for epoch in range(3):
        loss = train(model, training, optimizer, device)
        print(f"epoch {epoch}: loss {loss:.3f}, accuracy {evaluate(model, validation, device):.2f}")


if __name__ == "__main__":
    main()
