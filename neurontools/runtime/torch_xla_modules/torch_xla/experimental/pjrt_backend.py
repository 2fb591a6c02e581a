"""torch_xla.experimental.pjrt_backend: importing it registers init_process_group("xla"), as xla_backend does."""

from __future__ import annotations

from ..distributed.xla_backend import ProcessGroupXla as ProcessGroupXla
