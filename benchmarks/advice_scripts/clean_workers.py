"""Reads slow rows with two workers that keep ahead of the steps."""

import time

import torch
import torch_xla
import torch_xla.distributed.parallel_loader as pl
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Recordings(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        time.sleep(0.0005)
        return torch.randn(1, 400), index % 5


device = torch_xla.device()
layers = nn.Conv1d(1, 32, 9, stride=2), nn.ReLU(), nn.Conv1d(32, 64, 9, stride=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1)
model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 5)).to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
loader = DataLoader(Recordings(), batch_size=8, num_workers=2, persistent_workers=True)
for sounds, labels in pl.MpDeviceLoader(loader, device):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(sounds), labels)
    loss.backward()
    optimizer.step()
