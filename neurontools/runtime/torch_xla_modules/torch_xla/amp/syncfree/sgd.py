"""torch_xla.amp.syncfree.sgd."""

from __future__ import annotations

import torch

from ._skipping import skipping

SGD = skipping(torch.optim.SGD)
