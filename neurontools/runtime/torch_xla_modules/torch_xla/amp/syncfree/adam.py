"""torch_xla.amp.syncfree.adam: the class Adam under its second import path."""

from __future__ import annotations

from . import Adam as Adam
