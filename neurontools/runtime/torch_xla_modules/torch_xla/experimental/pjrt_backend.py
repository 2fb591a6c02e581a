"""torch_xla.experimental.pjrt_backend: importing it makes init_process_group("xla") known, as xla_backend does."""

from __future__ import annotations

from ..distributed.xla_backend import ProcessGroupXla as ProcessGroupXla
