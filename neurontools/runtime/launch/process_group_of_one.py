"""`init_process_group("xla")` in a script that no launcher of ranks has started: a process group of one.

Scripts for torchrun are tried with a plain `neuron-run script.py` too. Where nothing says which rank this process is,
it is the only one; `init_method="xla://"`, which torch_xla has, means what the environment says.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch.distributed as dist

_SAID_BY_THE_SCRIPT = frozenset({"store", "rank", "world_size"})


def install() -> None:
    """Makes init_process_group do so; once is enough, more does no harm."""
    original = dist.init_process_group
    if hasattr(original, "__wrapped__") and original.__module__ == __name__:
        return

    def init_process_group(backend: Any = None, init_method: Any = None, *rest: Any, **named: Any) -> Any:
        if backend == "xla" and init_method in (None, "xla://"):
            init_method = None
            if "RANK" not in os.environ and not rest and not _SAID_BY_THE_SCRIPT & named.keys():
                named |= {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        return original(backend, init_method, *rest, **named)

    functools.update_wrapper(init_process_group, original)
    init_process_group.__module__ = __name__
    dist.init_process_group = init_process_group
    dist.distributed_c10d.init_process_group = init_process_group
