"""torch_xla.distributed.xla_backend: importing it makes init_process_group("xla") known."""

from __future__ import annotations

from neurontools.runtime.collectives import NeuronProcessGroup as ProcessGroupXla
from neurontools.runtime.collectives import install

install()
__all__ = ["ProcessGroupXla"]
