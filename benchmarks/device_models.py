"""The models of device_step.py: six small networks with data and optimizers, and a chain of additions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]
Step = Callable[[], None]
CHAIN_OPERATORS = 1000


class Bert(nn.Module):
    """A BERT encoder with a head of 30522 words; 4 layers of width 512."""

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


class Block(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        parts = self.attend(self.before_attention(hidden)).split(width, 2)
        query, key, value = (p.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for p in parts)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.mlp(self.before_mlp(hidden))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """GPT-2 with a head that shares the embedding's weights; 4 layers of width 256."""

    def __init__(self, width: int = 256, layers: int = 4, heads: int = 4, words: int = 8192) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(256, width)
        self.layers = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.norm(self.layers(self.words(tokens) + self.positions(places)))
        return self.head(hidden).flatten(0, 1)  # type: ignore[no-any-return]


class Vit(nn.Module):
    """A vision transformer for 224 x 224 images; 4 layers of width 192."""

    def __init__(self, width: int = 192, layers: int = 4, heads: int = 3) -> None:
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


class Lstm(nn.Module):
    """Two layers of LSTM over sequences of 64 features, and a head over their last outputs."""

    def __init__(self, features: int = 64, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.LSTM(features, width, 2, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(values)[0][:, -1])  # type: ignore[no-any-return]


class Residual(nn.Module):
    """Two convolutions of ResNet-18 with their residual connection."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(inplace=True),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        around = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
        self.around = nn.Identity() if stride == 1 and inner == outer else around
        self.end = nn.ReLU(inplace=True)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.end(self.body(values) + self.around(values))  # type: ignore[no-any-return]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


def resnet() -> nn.Module:
    stem = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    )
    widths = [64, 64, 128, 256, 512]
    blocks = [
        Residual(inner if first else outer, outer, 2 if first and outer > 64 else 1)
        for inner, outer in itertools.pairwise(widths)
        for first in (True, False)
    ]
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def words(batch: int, length: int, count: int) -> Batch:
    return torch.randint(0, count, (batch, length)), torch.randint(0, count, (batch * length,))


@dataclass(frozen=True)
class Training:
    """A model, its data, its optimizer, and the number of steps in a round. `batch_text` describes a batch."""

    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    batch_text: str
    steps: int
    optimizer: Callable[..., Any] = torch.optim.AdamW

    def step_on(self, where: str, mark: Step) -> Step:
        """Returns a function that trains one step on a device and then calls `mark`."""
        model = self.make().to(where)
        optimizer = self.optimizer(model.parameters(), lr=1e-3)
        value, target = (part.to(where) for part in self.batch())
        cross_entropy: Any = nn.functional.cross_entropy

        def step() -> None:
            optimizer.zero_grad()
            loss: Any = cross_entropy(model(value), target)
            loss.backward()
            optimizer.step()
            mark()

        return step


@dataclass(frozen=True)
class Chain:
    """A chain of additions of small tensors: the cost of one operator."""

    batch_text: str = f"{CHAIN_OPERATORS} additions of 8 x 8"
    steps: int = 20

    def step_on(self, where: str, mark: Step) -> Step:
        """Returns a function that executes the chain on a device and then calls `mark`."""
        one, start = torch.ones(8, 8).to(where), torch.zeros(8, 8).to(where)

        def step() -> None:
            value = start
            for _ in range(CHAIN_OPERATORS):
                value = value + one
            mark()

        return step


CASES: dict[str, Training | Chain] = {
    "mlp": Training(mlp, lambda: (torch.randn(32, 784), torch.randint(0, 10, (32,))), "32 x 784", 400, torch.optim.SGD),
    "lstm": Training(Lstm, lambda: (torch.randn(16, 32, 64), torch.randint(0, 10, (16,))), "16 x 32 x 64", 60),
    "vit": Training(Vit, lambda: (torch.randn(4, 3, 224, 224), torch.randint(0, 1000, (4,))), "4 images of 224²", 8),
    "bert": Training(Bert, lambda: words(4, 128, 30522), "4 x 128 words", 3),
    "gpt": Training(Gpt, lambda: words(4, 128, 8192), "4 x 128 words", 8),
    "resnet": Training(
        resnet, lambda: (torch.randn(8, 3, 64, 64), torch.randint(0, 1000, (8,))), "8 images of 64²", 8, torch.optim.SGD
    ),
    "chain": Chain(),
}
