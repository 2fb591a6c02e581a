"""torch_xla.distributed.xla_backend: importing it registers the backend of init_process_group("xla")."""

from __future__ import annotations

from neurontools.runtime.execution.process_group import NeuronProcessGroup as ProcessGroupXla
from neurontools.runtime.execution.process_group import register_backend
from neurontools.runtime.launch.spawned_workers import default_to_single_rank

register_backend()
default_to_single_rank()
__all__ = ["ProcessGroupXla"]
