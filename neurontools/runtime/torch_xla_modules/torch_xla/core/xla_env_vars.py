"""torch_xla.core.xla_env_vars: names of environment variables."""

from __future__ import annotations

from typing import Any

from neurontools.runtime.launch.missing import text_of

PJRT_DEVICE = "PJRT_DEVICE"
HOST_ORDINAL = "GROUP_RANK"


def __getattr__(name: str) -> Any:
    raise AttributeError(text_of(f"torch_xla.core.xla_env_vars.{name}"))
