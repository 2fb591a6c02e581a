"""Pads each batch of sentences to its longest one, in two workers of the loader."""

import random

import torch
import torch_xla
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self):
        generator = random.Random(3)
        self.rows = [[generator.randrange(1, 200) for _ in range(generator.randrange(3, 120))] for _ in range(480)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.tensor(self.rows[index])


def collate(sentences):
    return pad_sequence(sentences, batch_first=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.recurrent, self.head = nn.Embedding(200, 16), nn.Linear(16, 16), nn.Linear(16, 200)

    def forward(self, tokens):
        return self.head(torch.tanh(self.recurrent(self.embedding(tokens))))


device = torch_xla.device()
model = Model().to(device)
optimizer = torch.optim.Adam(model.parameters())
for tokens in DataLoader(Sentences(), batch_size=8, collate_fn=collate, num_workers=2):
    tokens = tokens.to(device)  # recompile
    optimizer.zero_grad()
    scores = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)
    loss.backward()
    optimizer.step()
    torch_xla.sync()
