"""torch_xla.amp.syncfree.adam."""

from __future__ import annotations

import torch

from ._skipping import skipping

Adam = skipping(torch.optim.Adam)
