"""torch_xla.core and its module xla_env_vars: names of environment variables."""

PJRT_DEVICE = "PJRT_DEVICE"
HOST_ORDINAL = "GROUP_RANK"
