"""Augments images in Python in the training process, which takes longer than a step."""

import random

import torch
import torch_xla
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        generator = random.Random(index)
        pixels = [generator.gauss(0, 1) for _ in range(3 * 32 * 32)]
        for row in range(0, len(pixels), 32):
            pixels[row : row + 32] = pixels[row : row + 32][::-1]
        return torch.tensor(pixels).reshape(3, 32, 32), index % 10


def main():
    device = torch_xla.device()
    model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    model(torch.zeros(1, 3, 32, 32))
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in DataLoader(Images(), batch_size=10):  # loader-wait
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        torch_xla.sync()


main()
