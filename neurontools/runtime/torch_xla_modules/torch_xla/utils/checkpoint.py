"""torch_xla.utils.checkpoint: activations are computed again in backward instead of being kept.

torch's own does it here. Nothing of it would be optimised away: each operator that was recorded is executed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """The result of a function whose activations are not kept; reentrant unless told otherwise, as in torch_xla."""
    return torch.utils.checkpoint.checkpoint(
        function, *args, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state, **kwargs
    )
