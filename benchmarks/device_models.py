"""Models for the benchmarks of the device: a small MLP, a small BERT and a small ViT, and their data."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]


class Bert(nn.Module):
    """A BERT encoder with a head of 30522 words; 4 layers of 512."""

    def __init__(self, width: int = 512, layers: int = 4, heads: int = 8, words: int = 30522) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(512, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.layers(self.words(tokens) + self.positions(places))
        return self.head(hidden).flatten(0, 1)  # type: ignore[no-any-return]


class Vit(nn.Module):
    """A vision transformer for 224 x 224 images; ViT-tiny: 12 layers of 192."""

    def __init__(self, width: int = 192, layers: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 197, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.patches(images).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.token.expand(len(images), -1, -1), hidden], 1) + self.positions
        return self.head(self.norm(self.layers(hidden))[:, 0])  # type: ignore[no-any-return]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


def mlp_batch() -> Batch:
    return torch.randn(32, 784), torch.randint(0, 10, (32,))


def bert_batch() -> Batch:
    return torch.randint(0, 30522, (8, 128)), torch.randint(0, 30522, (8 * 128,))


def vit_batch() -> Batch:
    return torch.randn(8, 3, 224, 224), torch.randint(0, 1000, (8,))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch], int]] = {
    "mlp": (mlp, mlp_batch, 400),
    "bert": (Bert, bert_batch, 6),
    "vit": (Vit, vit_batch, 8),
}
