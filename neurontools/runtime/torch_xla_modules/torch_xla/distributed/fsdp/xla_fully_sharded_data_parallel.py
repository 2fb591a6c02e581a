"""Where torch_xla has XlaFullyShardedDataParallel."""

from __future__ import annotations

from .sharded import XlaFullyShardedDataParallel as XlaFullyShardedDataParallel
