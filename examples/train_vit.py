"""Trains a vision transformer on random pictures with torch_xla, as an example for estimates.

    neuron-run --estimate inf2.xlarge examples/train_vit.py --steps 3

The default is ViT-B/16 at 224 pixels, whose step takes half a minute on a CPU. --small is a quick one.
"""

from __future__ import annotations

import argparse

import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 1000


class Block(nn.Module):
    """A transformer block: attention and MLP, each after a norm and with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.before_perceptron = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the tokens after this block."""
        count, length, width = tokens.shape
        parts = self.queries_keys_values(self.before_attention(tokens)).chunk(3, dim=-1)
        queries, keys, values = (part.view(count, length, self.heads, -1).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(queries, keys, values)
        tokens = tokens + self.mixed(attended.transpose(1, 2).reshape(count, length, width))
        result: torch.Tensor = tokens + self.perceptron(self.before_perceptron(tokens))
        return result


class VisionTransformer(nn.Module):
    """A vision transformer: patches of a picture as tokens, and a class token."""

    def __init__(self, pixels: int, patch: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (pixels // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Returns one score for each class."""
        tokens = self.patches(pictures).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], dim=1) + self.places
        scores: torch.Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return scores


def main() -> None:
    """Trains for some steps and prints the loss."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--batches-per-execution", type=int, default=1)
    parser.add_argument("--bf16", action="store_true", help="weights and pictures in bfloat16")
    parser.add_argument("--small", action="store_true", help="a model that a CPU trains in no time")
    given = parser.parse_args()
    torch.manual_seed(0)
    device = xm.xla_device()
    dtype = torch.bfloat16 if given.bf16 else torch.float32
    pixels = 32 if given.small else 224
    shape = (8, 64, 2, 4) if given.small else (16, 768, 12, 12)
    model = VisionTransformer(pixels, *shape).to(dtype).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    count = given.batch * given.steps
    pictures = TensorDataset(torch.randn(count, 3, pixels, pixels).to(dtype), torch.randint(0, CLASSES, (count,)))
    loader = pl.MpDeviceLoader(
        DataLoader(pictures, batch_size=given.batch), device, batches_per_execution=given.batches_per_execution
    )
    for batch, classes in loader:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch).float(), classes)
        loss.backward()
        xm.optimizer_step(optimizer)
    print(f"loss {loss.item():.3f} after {given.steps} steps")


if __name__ == "__main__":
    main()
