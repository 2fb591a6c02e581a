"""torch_xla.core and its module xla_env_vars: names of environment variables."""

from __future__ import annotations

PJRT_DEVICE = "PJRT_DEVICE"
HOST_ORDINAL = "GROUP_RANK"
