"""torch_xla.distributed.fsdp: parameters that are shared out among the ranks."""

from __future__ import annotations

from typing import Any

from neurontools.runtime.launch.import_hook import unsupported_message

from .sharded import XlaFullyShardedDataParallel as XlaFullyShardedDataParallel
from .state_dict_utils import (
    consolidate_sharded_model_checkpoints as consolidate_sharded_model_checkpoints,
)
from .state_dict_utils import (
    consolidate_sharded_state_dicts as consolidate_sharded_state_dicts,
)
from .utils import checkpoint_module as checkpoint_module


def __getattr__(name: str) -> Any:
    raise AttributeError(unsupported_message(f"torch_xla.distributed.fsdp.{name}"))
