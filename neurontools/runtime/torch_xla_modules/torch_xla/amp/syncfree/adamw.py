"""torch_xla.amp.syncfree.adamw."""

from __future__ import annotations

from . import AdamW as AdamW
