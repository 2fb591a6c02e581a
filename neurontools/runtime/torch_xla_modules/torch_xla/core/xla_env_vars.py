"""torch_xla.core.xla_env_vars: names of environment variables."""

from __future__ import annotations

from typing import Any

from neurontools.runtime.launch.import_hook import unsupported_message

PJRT_DEVICE = "PJRT_DEVICE"
HOST_ORDINAL = "GROUP_RANK"


def __getattr__(name: str) -> Any:
    raise AttributeError(unsupported_message(f"torch_xla.core.xla_env_vars.{name}"))
