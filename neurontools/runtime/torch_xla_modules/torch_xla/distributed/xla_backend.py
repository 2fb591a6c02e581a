"""torch_xla.distributed.xla_backend: importing it registers the backend of init_process_group("xla").

Without a launcher, init_process_group("xla") then creates a group of one process.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch.distributed as dist

from neurontools.runtime.execution.process_group import NeuronProcessGroup as ProcessGroupXla
from neurontools.runtime.execution.process_group import register_backend

__all__ = ["ProcessGroupXla"]

_RANK_ARGUMENTS = frozenset({"store", "rank", "world_size"})
_original = dist.init_process_group


@functools.wraps(_original)
def _init_process_group(backend: Any = None, init_method: Any = None, *rest: Any, **named: Any) -> Any:
    """Also accepts torch_xla's `init_method="xla://"`, which reads the rank from the environment."""
    if backend == "xla" and init_method in (None, "xla://"):
        init_method = None
        if "RANK" not in os.environ and not rest and not _RANK_ARGUMENTS & named.keys():
            named |= {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    return _original(backend, init_method, *rest, **named)


register_backend()
dist.init_process_group = _init_process_group
dist.distributed_c10d.init_process_group = _init_process_group
