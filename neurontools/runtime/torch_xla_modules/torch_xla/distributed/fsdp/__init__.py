"""torch_xla.distributed.fsdp: fully sharded data parallelism."""

from __future__ import annotations

from .state_dict_utils import (
    consolidate_sharded_model_checkpoints as consolidate_sharded_model_checkpoints,
)
from .state_dict_utils import (
    consolidate_sharded_state_dicts as consolidate_sharded_state_dicts,
)
from .utils import checkpoint_module as checkpoint_module
from .xla_fully_sharded_data_parallel import XlaFullyShardedDataParallel as XlaFullyShardedDataParallel
