"""torch_xla.distributed.xla_backend: importing it makes init_process_group("xla") known."""

from __future__ import annotations

from neurontools.runtime.execution.process_group import NeuronProcessGroup as ProcessGroupXla
from neurontools.runtime.execution.process_group import install
from neurontools.runtime.launch.process_group_of_one import install as install_process_group_of_one

install()
install_process_group_of_one()
__all__ = ["ProcessGroupXla"]
