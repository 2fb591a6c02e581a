"""torch_xla.amp.syncfree.adamw."""

from __future__ import annotations

import torch

from ._skipping import skipping

AdamW = skipping(torch.optim.AdamW)
