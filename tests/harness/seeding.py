"""Seeds for tests on the simulated device."""

from __future__ import annotations

import torch


def seed(number: int) -> None:
    """What `torch.manual_seed` does to the CPU and the device; for three other kinds it makes a traceback each time."""
    torch.default_generator.manual_seed(number)
    torch.xla.manual_seed_all(number)  # type: ignore[attr-defined]
