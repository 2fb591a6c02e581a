"""torch_xla.utils.checkpoint: activation checkpointing.

torch's own function is enough here: each recorded operator is executed, so no compiler removes the recomputation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool = True, **kwargs: Any) -> Any:
    """Calls a function and recomputes its activations in backward; reentrant by default, as in torch_xla."""
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=use_reentrant, **kwargs)
