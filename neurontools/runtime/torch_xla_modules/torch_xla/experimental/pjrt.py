"""torch_xla.experimental.pjrt: the old name of torch_xla.runtime (before 2.1)."""

from __future__ import annotations

from typing import Any

from neurontools.runtime.launch.import_hook import unsupported_message

from .. import runtime
from ..core.xla_model import broadcast_master_param as broadcast_master_param
from ..core.xla_model import rendezvous as rendezvous


def __getattr__(name: str) -> Any:
    found = vars(runtime).get(name)
    if found is None or name.startswith("_"):
        raise AttributeError(unsupported_message(f"torch_xla.experimental.pjrt.{name}"))
    return found
