"""Averages the loss with a helper class, which reads it after every step."""

import torch
import torch_xla
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AverageMeter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value):
        self.total += value.item()  # host-read
        self.count += 1


def train_one_epoch(model, loader, optimizer, device):
    meter = AverageMeter()
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        meter.update(loss)
    return meter.total / meter.count


def main():
    device = torch_xla.device()
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    rows = TensorDataset(torch.randn(128, 3, 16, 16), torch.randint(0, 10, (128,)))
    loader = DataLoader(rows, batch_size=8, shuffle=True, drop_last=True)
    for epoch in range(3):
        print(f"epoch {epoch}: loss {train_one_epoch(model, loader, optimizer, device):.3f}")


if __name__ == "__main__":
    main()
